package config

import (
	"fmt"

	"github.com/pelletier/go-toml/v2/unstable"
)

// lineIndex maps "section", "section.key" and "section.key[N]" to the line where they
// stand. The decoder keeps no positions, so the document is scanned a second time.
type lineIndex map[string]int

// of finds the line of a path; 1 where it is not known.
func (l lineIndex) of(path string) int { return max(l[path], 1) }

func elementPath(path string, index int) string { return fmt.Sprintf("%s[%d]", path, index) }

// indexLines scans a document that has been decoded without error.
func indexLines(data []byte) lineIndex {
	index := lineIndex{}
	var p unstable.Parser
	p.Reset(data)
	table := ""
	for p.NextExpression() {
		expr := p.Expression()
		switch expr.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = index.key(&p, "", expr)
		case unstable.KeyValue:
			index.keyValue(&p, table, expr)
		}
	}
	return index
}

// key records the line of every prefix of a dotted key and returns the whole path.
func (l lineIndex) key(p *unstable.Parser, prefix string, node *unstable.Node) string {
	path := prefix
	for it := node.Key(); it.Next(); {
		if path != "" {
			path += "."
		}
		path += string(it.Node().Data)
		if l[path] == 0 {
			l[path] = line(p, it.Node())
		}
	}
	return path
}

func (l lineIndex) keyValue(p *unstable.Parser, prefix string, node *unstable.Node) {
	path := l.key(p, prefix, node)
	value := node.Value()
	switch value.Kind {
	case unstable.InlineTable:
		for it := value.Children(); it.Next(); {
			l.keyValue(p, path, it.Node())
		}
	case unstable.Array:
		for i, it := 0, value.Children(); it.Next(); i++ {
			// Only scalars carry their place; anything else stands where its key does.
			l[elementPath(path, i)] = l[path]
			if it.Node().Raw.Length > 0 {
				l[elementPath(path, i)] = line(p, it.Node())
			}
		}
	}
}

func line(p *unstable.Parser, node *unstable.Node) int { return p.Shape(node.Raw).Start.Line }
