package fakevirt

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// readyFD is where a QEMU tells its maker that it runs, or why not.
const readyFD = 3

// QEMUMain is a QEMU: the program behind the argument "qemu", with the arguments that
// follow. It waits for a line on standard input, opens its disks, answers with a line on
// file descriptor 3 and sleeps until it is told to end; one that is Spec.Incoming waits for
// a second line before its CPUs run. It returns the exit code.
func QEMUMain(args []string) int {
	flags := flag.NewFlagSet("qemu", flag.ContinueOnError)
	flags.String("name", "", "")
	flags.String("uuid", "", "")
	flags.Bool("S", false, "")
	life := flags.Duration("life", time.Hour, "")
	data := flags.String("spec", "", "")
	var spec Spec
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if err := json.Unmarshal([]byte(*data), &spec); err != nil {
		return 2
	}
	quit := make(chan os.Signal, 1)
	signal.Notify(quit, unix.SIGTERM, unix.SIGINT)
	signal.Ignore(unix.SIGHUP)
	ready := os.NewFile(readyFD, "ready")
	words := make(chan string)
	go func() {
		defer close(words) // its maker is gone, or done
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			words <- in.Text()
		}
	}()
	if <-words != wordOpen {
		return 1
	}
	disks, err := openDisks(spec, os.Getpid(), ownStart())
	if err != nil {
		_, _ = fmt.Fprintln(ready, strings.ReplaceAll(err.Error(), "\n", " "))
		return 1
	}
	defer disks.close()
	_, _ = io.WriteString(ready, "\n")
	end := time.After(*life)
	if spec.Incoming {
		select {
		case <-quit:
			return 0
		case <-end:
			return 0
		case word := <-words:
			if word == wordCont {
				err = disks.write(spec, os.Getpid())
			}
			if word != wordCont && word != wordStay {
				return 1
			}
		}
		text := ""
		if err != nil {
			text = strings.ReplaceAll(err.Error(), "\n", " ")
		}
		_, _ = fmt.Fprintln(ready, text)
	}
	_ = ready.Close()
	select {
	case <-quit:
	case <-end:
	}
	return 0
}

// ownStart is field 22 of /proc/self/stat, the time this process started.
func ownStart() string {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 20 {
		return ""
	}
	return fields[19]
}
