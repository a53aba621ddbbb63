package cli

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/urfave/cli/v2"

	"virtlvm/internal/config"
)

// show prints an answer as JSON where --json is given, else with table.
func show[T any](p *program, c *cli.Context, answer T, table func(T) error) error {
	if c.Bool("json") {
		return p.json(answer)
	}
	return table(answer)
}

func (p *program) json(v any) error {
	enc := json.NewEncoder(p.out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// printf prints to the output; a failed write shows when Main flushes it.
func (p *program) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(p.out, format, args...)
}

// table prints rows below a heading in columns as wide as they need.
func (p *program) table(heading string, rows [][]string) error {
	w := tabwriter.NewWriter(p.out, 0, 8, 2, ' ', 0)
	for _, row := range append([][]string{strings.Split(heading, "|")}, rows...) {
		cells := make([]string, len(row))
		for i, s := range row {
			cells[i] = cell(s)
		}
		if _, err := fmt.Fprintln(w, strings.Join(cells, "\t")); err != nil {
			return err
		}
	}
	return w.Flush()
}

// field prints one line of a record.
func (p *program) field(name, value string) { p.printf("%-10s %s\n", name+":", cell(value)) }

// cell makes a text fit a table: never empty, never with a control character. Names of
// guests come from whoever defined them and must not steer the terminal.
func cell(s string) string {
	if s == "" {
		return "-"
	}
	return line(s)
}

// line quotes a text that would not print as one plain line.
func line(s string) string {
	if utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return s
	}
	return strconv.Quote(s)
}

// list joins some texts, the first few of a long list.
func list(items []string) string {
	const most = 4
	if len(items) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(items[:most], " "), len(items)-most)
	}
	return strings.Join(items, " ")
}

// stamp is a time in the zone of the reader, "" if there is none.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format(time.DateTime)
}

// took is a duration as people read it: "12ms", "3.4s", "2m5s"; "" for none.
func took(d time.Duration) string {
	switch {
	case d <= 0:
		return ""
	case d < time.Millisecond:
		return "<1ms"
	case d < time.Second:
		d = d.Round(time.Millisecond)
	case d < time.Minute:
		d = d.Round(100 * time.Millisecond)
	default:
		d = d.Round(time.Second)
	}
	return config.Short(d)
}

// size is a number of bytes in binary units as LVM prints it, but with the unit spelt out.
func size(n int64) string {
	const unit = 1024
	if n < unit {
		return strconv.FormatInt(n, 10) + " B"
	}
	value, prefix := float64(n), 0
	for value >= unit && prefix < 6 {
		value /= unit
		prefix++
	}
	return fmt.Sprintf("%.2f %ciB", value, " KMGTPE"[prefix])
}

func number(n int) string { return strconv.Itoa(n) }

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
