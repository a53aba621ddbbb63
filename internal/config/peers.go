package config

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"virtlvm/internal/api"
)

func setDiscover(c *Config, value any) error {
	on, ok := value.(bool)
	if !ok {
		return errors.New("must be true or false")
	}
	c.Peers.Discover = on
	return nil
}

// maxParallel keeps a wrong number from starting thousands of ssh at once.
const maxParallel = 256

func setParallel(c *Config, value any) error {
	n, ok := value.(int64)
	if !ok || n < 1 || n > maxParallel {
		return fmt.Errorf("must be a number from 1 to %d", maxParallel)
	}
	c.Peers.Parallel = int(n)
	return nil
}

func setHosts(c *Config, value any) error {
	const form = `must be a table such as { kvm-b = "ssh://root@kvm-b:22" }`
	table, ok := value.(map[string]any)
	if !ok {
		return errors.New(form)
	}
	hosts := map[string]string{}
	// In order, so that the same mistake is reported each time.
	for _, name := range slices.Sorted(maps.Keys(table)) {
		url, ok := table[name].(string)
		err := api.CheckHostName(name)
		if err == nil && !ok {
			err = errors.New(form)
		}
		if err == nil {
			_, err = api.ParseTarget(url)
		}
		if err != nil {
			return &elementError{"." + name, err}
		}
		hosts[name] = url
	}
	c.Peers.Hosts = hosts
	return nil
}

// plain is a path that means itself in the options of ssh, which splits at spaces, takes
// quotes and expands %, $ and ~.
var plain = regexp.MustCompile(`^/[A-Za-z0-9._/@:+-]*$`)

func plainPath(s string) error {
	if !plain.MatchString(s) {
		return fmt.Errorf("%q is not an absolute path of letters, digits and ._/@:+-", s)
	}
	return nil
}
