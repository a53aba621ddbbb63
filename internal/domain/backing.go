package domain

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
)

// parseBacking reads a reference to another image as QEMU's block layer does: a path,
// PROTOCOL:REST, or json:{...} with the options of -blockdev. Format is what the header
// says the other image is, "" if it says nothing; image is the path of the header.
//
// What is not understood is refused: it might name a volume.
func parseBacking(ref, format, image string) (*Source, error) {
	if text, ok := strings.CutPrefix(ref, "json:"); ok {
		s, err := parseJSON(text, format, image)
		if err != nil {
			return nil, fmt.Errorf("cannot tell what %q names: %w", ref, err)
		}
		return s, nil
	}
	// As in QEMU, a colon before any slash makes a protocol.
	first := strings.IndexAny(ref, ":/")
	if first < 0 || ref[first] == '/' {
		return &Source{Path: beside(image, ref), Format: format}, nil
	}
	protocol, rest := ref[:first], ref[first+1:]
	switch {
	case localDriver(protocol) && rest != "":
		return &Source{Path: beside(image, rest), Format: format}, nil
	case networkDriver(protocol):
		return &Source{Format: format}, nil
	}
	return nil, fmt.Errorf("cannot tell what %q names", ref)
}

// beside joins a relative name to the directory of the image that contains it. The
// result is not cleaned: what ".." means depends on links.
func beside(image, name string) string {
	if strings.HasPrefix(name, "/") {
		return name
	}
	return strings.TrimSuffix(filepath.Dir(image), "/") + "/" + name
}

// localDriver and networkDriver: QEMU's protocol drivers (BlockdevDriver in
// qapi/block-core.json) and the URI schemes that select them.
func localDriver(name string) bool {
	return name == "file" || name == "host_device" || name == "host_cdrom"
}

func networkDriver(name string) bool {
	base, _, _ := strings.Cut(name, "+") // nbd+unix, gluster+tcp
	switch base {
	case "nbd", "rbd", "iscsi", "iser", "http", "https", "ftp", "ftps", "ssh", "nfs", "gluster", "sheepdog", "vxhs":
		return true
	}
	return false
}

// node is one level of a json: reference.
type node map[string]json.RawMessage

// parseJSON accepts a protocol node, or one format node over a protocol node, nested
// ("file":{...}) or flattened ("file.driver":...).
func parseJSON(text, format, image string) (*Source, error) {
	var top node
	if err := json.Unmarshal([]byte(text), &top); err != nil {
		return nil, err
	}
	file, err := top.child("file")
	if err != nil {
		return nil, err
	}
	if file == nil {
		return top.protocol(format, image)
	}
	driver, err := top.text("driver")
	if err != nil {
		return nil, err
	}
	if driver != "" && format != "" && driver != format {
		return nil, fmt.Errorf("the header says format %q, the reference %q", format, driver)
	}
	if driver != "" {
		format = driver
	}
	s, err := file.protocol(format, image)
	if err != nil {
		return nil, err
	}
	for key := range top {
		switch key {
		case "driver", "file":
		case "offset", "size":
			s.Sliced = true
		default:
			if !harmless(key) && !strings.HasPrefix(key, "file.") {
				return nil, fmt.Errorf("option %q is not known", key)
			}
		}
	}
	return s, nil
}

// child returns the node under a key, nil if there is none.
func (n node) child(key string) (node, error) {
	var c node
	raw, nested := n[key]
	if nested {
		if err := json.Unmarshal(raw, &c); err != nil || c == nil {
			return nil, fmt.Errorf("option %q is not an object", key)
		}
	}
	for k, v := range n {
		if rest, ok := strings.CutPrefix(k, key+"."); ok {
			if nested {
				return nil, fmt.Errorf("option %q stands beside %q", k, key)
			}
			if c == nil {
				c = node{}
			}
			c[rest] = v
		}
	}
	return c, nil
}

// protocol reads a node that ends the reference.
func (n node) protocol(format, image string) (*Source, error) {
	driver, err := n.text("driver")
	if err != nil {
		return nil, err
	}
	if networkDriver(driver) {
		return &Source{Format: format}, nil
	}
	name, err := n.text("filename")
	if err != nil {
		return nil, err
	}
	switch {
	case driver != "" && !localDriver(driver):
		return nil, fmt.Errorf("driver %q is not known", driver)
	case name == "":
		return nil, fmt.Errorf("it has no file name")
	case driver == "":
		// A bare file name is parsed once more, as one on the command line.
		if strings.HasPrefix(name, "json:") {
			return nil, fmt.Errorf("it is nested")
		}
		return parseBacking(name, format, image)
	}
	for key := range n {
		if key != "driver" && key != "filename" && !harmless(key) {
			return nil, fmt.Errorf("option %q is not known", key)
		}
	}
	return &Source{Path: beside(image, name), Format: format}, nil
}

func (n node) text(key string) (string, error) {
	raw, ok := n[key]
	if !ok {
		return "", nil
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", fmt.Errorf("option %q is not a string", key)
	}
	return s, nil
}

// harmless options say how an image is opened, not which.
func harmless(key string) bool {
	switch key {
	case "node-name", "read-only", "auto-read-only", "discard", "detect-zeroes", "aio", "locking", "cache",
		"cache.direct", "cache.no-flush":
		return true
	}
	return false
}
