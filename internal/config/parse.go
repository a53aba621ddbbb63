package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2"
)

// Parse reads a configuration from memory; name stands for the file in messages. The
// error is *Error with every mistake, except that nothing after a syntax error can be
// judged.
func Parse(name string, data []byte) (*Config, error) {
	doc := map[string]any{}
	if err := toml.Unmarshal(data, &doc); err != nil {
		return nil, newError([]Problem{syntaxProblem(name, data, err)})
	}
	p := parser{file: name, lines: indexLines(data), cfg: Default()}
	p.document(doc)
	if len(p.problems) == 0 {
		p.conflicts()
	}
	if len(p.problems) > 0 {
		return nil, newError(p.problems)
	}
	return p.cfg, nil
}

// parser collects problems while it fills a Config from a decoded document.
type parser struct {
	file     string
	lines    lineIndex
	cfg      *Config
	problems []Problem
}

func (p *parser) report(key, format string, args ...any) {
	p.problems = append(p.problems, Problem{File: p.file, Line: p.lines.of(key), Message: fmt.Sprintf(format, args...)})
}

func (p *parser) document(doc map[string]any) {
	for name, value := range doc {
		if name == vgSection {
			p.volumeGroups(value)
			continue
		}
		if !slices.ContainsFunc(settings, func(s setting) bool { return s.section == name }) {
			p.report(name, "unknown section or key %q; known sections: %s", name, strings.Join(sections(), ", "))
			continue
		}
		table, ok := value.(map[string]any)
		if !ok {
			p.report(name, "%s must be a section: write [%s] on a line of its own", name, name)
			continue
		}
		p.section(name, table)
	}
}

func (p *parser) section(section string, table map[string]any) {
	for key, value := range table {
		path := section + "." + key
		i := slices.IndexFunc(settings, func(s setting) bool { return s.section == section && s.key == key })
		if i < 0 {
			p.report(path, "unknown key %q in [%s]; known: %s", key, section, strings.Join(keys(section), ", "))
			continue
		}
		err := settings[i].set(p.cfg, value)
		var element *elementError
		if errors.As(err, &element) {
			p.report(path+element.at, "%s: %v", path, element.err)
		} else if err != nil {
			p.report(path, "%s: %v", path, err)
		}
	}
}

// conflicts finds values that are good alone but not together.
func (p *parser) conflicts() {
	for i, vg := range p.cfg.Scope.VolumeGroups {
		if slices.Contains(p.cfg.Scope.Exclude, vg) {
			p.report(elementPath("scope.volume_groups", i), "scope.volume_groups: %s is in scope.exclude as well; keep it in one of the two", vg)
		}
	}
	p.claimConflicts()
}

// syntaxProblem turns an error of the TOML library into a problem with a line.
func syntaxProblem(name string, data []byte, err error) Problem {
	p := Problem{File: name, Line: 1, Message: strings.TrimPrefix(err.Error(), "toml: ")}
	var decode *toml.DecodeError
	switch {
	case errors.As(err, &decode):
		p.Line, _ = decode.Position()
	case !utf8.Valid(data):
		p.Message = "not UTF-8 text"
	}
	// Parts of the document can come back in the message: it must stay one line.
	p.Message = strings.Join(strings.Fields(p.Message), " ")
	return p
}

func sections() []string {
	seen := map[string]bool{vgSection: true}
	for _, s := range settings {
		seen[s.section] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

func keys(section string) []string {
	var out []string
	for _, s := range settings {
		if s.section == section {
			out = append(out, s.key)
		}
	}
	return out
}
