package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/model"
)

// manyVolumes is how many volumes are made.
const manyVolumes = 100

// createVolumes measures `volume create` of many volumes, asked for one after the other, from
// the first request to the end of the last command. LVM's own time is that of the fake tools.
func (b *bench) createVolumes(ctx context.Context) error {
	began := time.Now()
	ids := make([]int64, 0, manyVolumes)
	for i := range manyVolumes {
		args, err := json.Marshal(api.CreateArgs{Volume: fmt.Sprintf("%s/made%d", sharedVG, i), Size: 4 << 20})
		if err != nil {
			return err
		}
		c, err := b.a.api.Run(ctx, api.CommandRequest{Kind: api.KindVolumeCreate, Args: args})
		if err != nil {
			return err
		}
		ids = append(ids, c.ID)
	}
	for _, id := range ids {
		if err := b.completed(ctx, id); err != nil {
			return err
		}
	}
	b.value(fmt.Sprintf("create_%d_volumes_s", manyVolumes), time.Since(began).Seconds(), "s", 0)
	return nil
}

// completed waits until a command has ended, and well.
func (b *bench) completed(ctx context.Context, id int64) error {
	for ctx.Err() == nil {
		c, err := b.a.api.Command(ctx, id)
		switch {
		case err != nil:
			return err
		case c.State == string(model.StateCompleted):
			return nil
		case model.CommandState(c.State).Final():
			return fmt.Errorf("command %d is %s: %s", id, c.State, c.Error)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return ctx.Err()
}
