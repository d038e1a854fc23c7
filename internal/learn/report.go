package learn

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// reportBytes bounds what is read of a report.
const reportBytes = 256 << 20

// Report is what is read of a file that run --report wrote.
type Report struct {
	State  string `json:"state"`
	Jail   string `json:"jail"`
	Policy struct {
		Workspace string  `json:"workspace"`
		Mode      string  `json:"mode"`
		Grants    []Grant `json:"grants"`
	} `json:"policy"`
	Enforcement struct {
		State string `json:"state"`
	} `json:"enforcement"`
	Exit       *Exit   `json:"exit"`
	DurationMS int64   `json:"durationMs"`
	Denials    []Event `json:"denials"`
	EventsLost uint64  `json:"eventsLost"`
}

// Exit is how the run ended.
type Exit struct {
	Code int    `json:"code"`
	From string `json:"from"` // command or thenforce
}

// Grant is a grant of the run.
type Grant struct {
	Path   string `json:"path"`
	Rights string `json:"rights"`
	Source string `json:"source"`
}

// Event is one operation that was denied, or would have been.
type Event struct {
	Time      time.Time `json:"time"`
	Comm      string    `json:"comm"`
	Op        string    `json:"op"`
	Path      string    `json:"path"`
	PathBytes []byte    `json:"pathBytes"`
	Code      string    `json:"code"`
	Count     uint64    `json:"count"`
	Suggest   struct {
		Grant string `json:"grant"`
	} `json:"suggest"`
}

// Read reads a report. A report of a run that has not ended is an error: most of it is missing.
func Read(r io.Reader) (*Report, error) {
	text, err := io.ReadAll(io.LimitReader(r, reportBytes+1))
	if err != nil {
		return nil, err
	}
	if len(text) > reportBytes {
		return nil, fmt.Errorf("it is longer than %d bytes", reportBytes)
	}
	var report Report
	if err := json.Unmarshal(text, &report); err != nil {
		return nil, err
	}
	switch {
	case report.Policy.Workspace == "":
		return nil, errors.New("it is no report of thenforce run: it names no workspace")
	case report.State == "starting":
		return nil, errors.New("the run that it is about has not ended, or was killed")
	}
	return &report, nil
}
