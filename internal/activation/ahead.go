package activation

import (
	"context"
	"fmt"
	"sync"
	"time"

	"virtlvm/internal/api"
	"virtlvm/internal/domain"
)

// hostsKnown is how long what is known of the other hosts is enough to ask one of them.
const hostsKnown = 3 * time.Minute

// guessSource is the host that holds the volumes a migrating guest writes, by what LVM has said of
// them last, what their leases say now, and the hosts as they were known last; "" where that is
// not known. It only tells whom to ask while all that is looked up anew, see lookWhile.
func (m *Manager) guessSource(ctx context.Context, t taker, d *domain.Domain) string {
	var found []located
	for _, w := range m.walks(d) {
		images, err := w.Next(ctx)
		if err != nil {
			return ""
		}
		for _, f := range images {
			im := located{Found: f, disk: w.disk}
			if im.LV && !m.recalled(&im) {
				return ""
			}
			found = append(found, im)
		}
	}
	source, err := m.sourceOf(ctx, t, found, m.readKnown(hostsKnown))
	if err != nil {
		return ""
	}
	return source
}

// recalled finds the volume of an image as LVM has listed it last.
func (m *Manager) recalled(im *located) bool {
	var err error
	if im.Ref, err = m.named(im.Ref); err != nil {
		return false
	}
	m.mu.Lock()
	inv := m.listed[im.Ref.VG]
	m.mu.Unlock()
	if inv == nil || inv.unlocked || m.claimed(im.Ref.VG) {
		return false
	}
	im.need, im.managed, err = m.needFor(inv, im)
	return err == nil
}

// foundHere is what this host knows of a guest's volumes.
type foundHere struct {
	found []located
	seen  *local // nil: there was no look
	err   error
}

// lookWhile looks at this host while the source is asked, and first for the guest's volumes and who
// holds them where the source was guessed; wait returns when it has. Nothing is taken before.
func (m *Manager) lookWhile(ctx context.Context, t taker, d *domain.Domain, source string, found []located) (wait func() foundHere) {
	here := foundHere{found: found, err: api.NewError(api.KindUnknown, "this host was not looked at")}
	ctx = m.Branch(ctx, "looks for "+t.owner)
	var done sync.WaitGroup
	done.Go(func() {
		if found == nil {
			if here.found, here.err = m.findLent(ctx, t, d, source); here.err != nil {
				return
			}
		}
		if seen, err := m.look(ctx); err == nil { // else it is looked again
			here.seen = &seen
		}
		here.err = nil
	})
	return func() foundHere {
		done.Wait()
		return here
	}
}

// findLent finds a guest's volumes, and makes sure of a source that was guessed. A lease that is
// being converted may name nobody for a moment.
func (m *Manager) findLent(ctx context.Context, t taker, d *domain.Domain, guessed string) ([]located, error) {
	found, err := m.next(ctx, m.walks(d))
	if err != nil {
		return nil, err
	}
	source, err := m.sourceOf(ctx, t, found, m.Leases.HoldersAll)
	if err == nil && source != "" && source != guessed {
		err = api.NewError(api.KindHeld, fmt.Sprintf("its volumes are held by %s, and a moment ago they were by %s; try again", source, guessed))
	}
	return found, err
}
