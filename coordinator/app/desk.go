package app

import (
	"encoding/json"
	"errors"
	"strings"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/signals"
	"girassol.dev/signals/director"
	"girassol.dev/signals/replay"
)

// reporter tells the ledgers.
type reporter struct {
	federation string
	books      *accountant
	traces     map[string]*replay.Series
}

// energyDesk answers the Admin service's questions about energy decisions.
type energyDesk struct {
	reporter
	director *director.Director
	clock    signals.Clock
}

// Report implements server.Energy.
func (d reporter) Report() (*coordinatorv1.ReportResponse, error) {
	r, err := d.books.report(d.federation, d.traces)
	if err != nil {
		return nil, err
	}
	var asCSV, asJSON strings.Builder
	if err := errors.Join(r.WriteCSV(&asCSV), r.WriteJSON(&asJSON)); err != nil {
		return nil, err
	}
	return &coordinatorv1.ReportResponse{Csv: asCSV.String(), Json: asJSON.String()}, nil
}

// Explain implements server.Energy.
func (d energyDesk) Explain(site string) (*coordinatorv1.ExplainResponse, error) {
	e, err := d.director.Explain(site)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	out := &coordinatorv1.ExplainResponse{Json: string(b)}
	for _, f := range e.Facts() {
		out.Facts = append(out.Facts, &coordinatorv1.Fact{Name: f.Name, Value: f.Value})
	}
	return out, nil
}

// Override implements server.Energy.
func (d energyDesk) Override(site string, admit bool, span time.Duration, reason string) (time.Time, error) {
	until := d.clock.Now().Add(span)
	return until, d.director.Override(site, admit, until, reason)
}

// ClearOverride implements server.Energy.
func (d energyDesk) ClearOverride(site string) error { return d.director.ClearOverride(site) }
