package openadr

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"girassol.dev/signals/webhook"
)

// Notifications decodes what an OpenADR server posts to a subscriber; it is a
// webhook.Decoder. They may be lost: poll the events, too, with a Tracker.
type Notifications struct {
	// Targets that the server's events are for.
	Targets []webhook.Target
	// Options without a target.
	Options Options
}

var _ webhook.Decoder = Notifications{}

// operation is what happened to an object.
type operation string

const (
	created operation = "CREATE"
	updated operation = "UPDATE"
	deleted operation = "DELETE"
)

const objectEvent = "EVENT"

// Decode gives an event's messages for every target. Objects other than events
// say nothing.
func (n Notifications) Decode(body []byte, now time.Time) ([]webhook.Message, error) {
	var notice struct {
		ObjectType string          `json:"objectType"`
		Operation  operation       `json:"operation"`
		Object     json.RawMessage `json:"object"`
	}
	if err := json.Unmarshal(body, &notice); err != nil {
		return nil, fmt.Errorf("openadr: notification: %w", err)
	}
	switch notice.Operation {
	case created, updated, deleted:
	default:
		if notice.Operation == "" || notice.ObjectType == objectEvent {
			return nil, fmt.Errorf("openadr: notification: unknown operation %.20q", notice.Operation)
		}
	}
	if notice.ObjectType != objectEvent {
		if notice.ObjectType == "" {
			return nil, errors.New("openadr: notification without an objectType")
		}
		return nil, nil
	}
	event, err := ParseEvent(notice.Object)
	if err != nil {
		return nil, err
	}
	version := sha256.Sum256(body)
	var out []webhook.Message
	for _, t := range n.Targets {
		o := n.Options
		o.Target = t
		var messages []webhook.Message
		if notice.Operation == deleted {
			messages, err = Cancel(event, o, now)
		} else {
			messages, err = Map(event, o, now)
		}
		if err != nil {
			return nil, err
		}
		for i, m := range messages {
			m.ID = fmt.Sprintf("%s\n%s\n%s\n%d", event.ID, hex.EncodeToString(version[:16]), t, i)
			out = append(out, m)
		}
	}
	return out, nil
}

// Cancel takes back all that Map gave for an event.
func Cancel(e Event, o Options, now time.Time) ([]webhook.Message, error) {
	messages, err := Map(e, o, now)
	if err != nil {
		return nil, err
	}
	for i := range messages {
		m := &messages[i]
		m.GeneratedAt, m.Points = now, nil
		if m.Curtailment != nil {
			m.Curtailment.Demands = nil
			m.Curtailment.Reason = clip("cancelled: " + e.name())
		}
	}
	return messages, nil
}
