//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
)

// report prints the results of several kernels as Markdown tables, and draws cost against depth.
func report(args []string) error {
	flags := flag.NewFlagSet("report", flag.ContinueOnError)
	plot := flags.String("svg", "", "write a plot of cost against depth to `FILE`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return errors.New("report: no file of results is named")
	}
	var all []results
	for _, name := range flags.Args() {
		r, err := readResults(name)
		if err != nil {
			return err
		}
		all = append(all, r)
	}
	for i, r := range all {
		if i > 0 {
			fmt.Println()
		}
		if err := r.print(os.Stdout); err != nil {
			return err
		}
	}
	if *plot == "" {
		return nil
	}
	return os.WriteFile(*plot, drawDepths(all), 0o644)
}

func readResults(name string) (results, error) {
	var r results
	text, err := os.ReadFile(name)
	if err != nil {
		return r, err
	}
	// A guest's output has what the bench said meanwhile before it.
	at := bytes.LastIndex(append([]byte("\n"), text...), []byte("\n{"))
	if at < 0 {
		return r, fmt.Errorf("read %s: no results in it", name)
	}
	if err := json.Unmarshal(text[at:], &r); err != nil {
		return r, fmt.Errorf("read %s: %w", name, err)
	}
	if r.Costs[none] == nil {
		return r, fmt.Errorf("read %s: no results of the state %q", name, none)
	}
	return r, nil
}

// operations are the rows of the table, in order.
func operations() []string {
	var list []string
	for _, depth := range depths {
		list = append(list, openAt(depth))
	}
	for _, depth := range depths {
		list = append(list, firstAt(depth))
	}
	return append(list, "denied open", "stat", "create and unlink", "rename", "exec")
}

// print writes a table: what an operation costs with no programs, and what each state adds to that.
func (r results) print(w io.Writer) error {
	var states []string
	for _, s := range statesInOrder[1:] {
		if r.Costs[s] != nil {
			states = append(states, s)
		}
	}
	t := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintf(t, "| %s\t| %s\t| %s\t|\n", r.Kernel, none, strings.Join(states, "\t| "))
	fmt.Fprintf(t, "|---\t|---:\t%s|\n", strings.Repeat("|---:\t", len(states)))
	for _, op := range operations() {
		base, ok := r.Costs[none][op]
		if !ok {
			continue
		}
		fmt.Fprintf(t, "| %s\t| %d\t", op, base)
		for _, s := range states {
			if cost, ok := r.Costs[s][op]; ok {
				fmt.Fprintf(t, "| %+d\t", cost-base)
			} else {
				fmt.Fprint(t, "| \t")
			}
		}
		fmt.Fprintln(t, "|")
	}
	return t.Flush()
}
