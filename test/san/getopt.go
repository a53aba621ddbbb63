package san

import (
	"fmt"
	"strings"
)

// options is a parsed command line. Long names have no dashes inside: LVM takes
// --lockstart and --lock-start alike.
type options struct {
	values map[string][]string
	rest   []string
}

func (o options) has(name string) bool { return len(o.values[name]) > 0 }

func (o options) last(name string) string {
	if v := o.values[name]; len(v) > 0 {
		return v[len(v)-1]
	}
	return ""
}

// commonOptions are known to every LVM command.
const commonOptions = "yes/y test/t verbose/v quiet/q debug/d config= nolocking lockopt= profile= " +
	"commandprofile= devices= devicesfile= journal= driverloaded= noudevsync readonly reportformat="

// parse reads args by a list of options such as "activate/a=": long name, short letter,
// "=" where it takes a value.
func parse(args []string, spec string) (options, error) { return newSyntax(spec).parse(args) }

// syntax is what options there are: which take a value, and the long names of letters.
type syntax struct {
	takes map[string]bool
	long  map[byte]string
}

func newSyntax(spec string) syntax {
	s := syntax{takes: map[string]bool{}, long: map[byte]string{}}
	for _, word := range strings.Fields(spec) {
		name, value := strings.CutSuffix(word, "=")
		name, letter, _ := strings.Cut(name, "/")
		s.takes[name] = value
		if letter != "" {
			s.long[letter[0]] = name
		}
	}
	return s
}

// parser is newSyntax, kept.
func (s *SAN) parser(spec string) syntax {
	s.syntaxes.Lock()
	defer s.syntaxes.Unlock()
	known, ok := s.syntax[spec]
	if !ok {
		known = newSyntax(spec)
		s.syntax[spec] = known
	}
	return known
}

func (s syntax) parse(args []string) (options, error) {
	takes, long := s.takes, s.long
	o := options{values: map[string][]string{}}
	for len(args) > 0 {
		a := args[0]
		args = args[1:]
		switch {
		case a == "--":
			o.rest = append(o.rest, args...)
			return o, nil
		case strings.HasPrefix(a, "--"):
			name, value, given := strings.Cut(a[2:], "=")
			name = strings.ReplaceAll(name, "-", "")
			needs, known := takes[name]
			switch {
			case !known:
				return o, fmt.Errorf("unrecognized option '%s'", a)
			case needs && !given:
				if len(args) == 0 {
					return o, fmt.Errorf("option '%s' requires an argument", a)
				}
				value, args = args[0], args[1:]
			}
			o.values[name] = append(o.values[name], value)
		case strings.HasPrefix(a, "-") && a != "-":
			var err error
			if args, err = o.short(a[1:], args, takes, long); err != nil {
				return o, err
			}
		default:
			o.rest = append(o.rest, a)
		}
	}
	return o, nil
}

// short reads a cluster of short options such as "vaey", the value joined or apart.
func (o *options) short(letters string, args []string, takes map[string]bool, long map[byte]string) ([]string, error) {
	for i := range len(letters) {
		name, known := long[letters[i]]
		if !known {
			return args, fmt.Errorf("invalid option -- '%c'", letters[i])
		}
		if !takes[name] {
			o.values[name] = append(o.values[name], "")
			continue
		}
		value := letters[i+1:]
		if value == "" {
			if len(args) == 0 {
				return args, fmt.Errorf("option requires an argument -- '%c'", letters[i])
			}
			value, args = args[0], args[1:]
		}
		o.values[name] = append(o.values[name], value)
		return args, nil
	}
	return args, nil
}

// parse reads the call's arguments for an LVM command; false: the error is printed.
func (c *call) parse(spec string) (options, bool) {
	o, err := c.san.parser(commonOptions + " " + spec).parse(c.args)
	if err != nil {
		fmt.Fprintf(&c.err, "%s: %v\n", c.tool, err)
		c.warn("Error during parsing of command line.")
		return o, false
	}
	return o, true
}

// noCommand is LVM's answer to arguments that fit no form of a command.
func (c *call) noCommand() int {
	c.warn("No command with matching syntax recognised.  Run '%s --help' for more information.", c.tool)
	return exitUsage
}
