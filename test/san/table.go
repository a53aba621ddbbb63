package san

import "strings"

// table prints the report for people, and for scripts with --noheadings.
func (c *call) table(cols []string, fields map[string]field, lines [][]string, o options) {
	headings := !o.has("noheadings") && len(lines) > 0
	if headings {
		var heads []string
		for _, name := range cols {
			heads = append(heads, fields[name].heading)
		}
		lines = append([][]string{heads}, lines...)
	}
	widths := make([]int, len(cols))
	for _, line := range lines {
		for i, v := range line {
			widths[i] = max(widths[i], len(v))
		}
	}
	for n, line := range lines {
		if sep := o.last("separator"); sep != "" {
			c.say("%s", strings.Join(line, sep))
			continue
		}
		for i, v := range line {
			pad := strings.Repeat(" ", widths[i]-len(v))
			if line[i] = v + pad; fields[cols[i]].right && (n > 0 || !headings) {
				line[i] = pad + v
			}
		}
		c.say("%s", strings.Join(line, " "))
	}
}
