// Package provisioning is the contract between Girassol's operator and whoever
// makes a site's capacity: HTTP with JSON bodies, signed as Standard Webhooks 1.0
// where one side asks the other to act. openapi.yaml beside this file says the
// same for other languages, docs/provisioning.md tells the story.
//
// Two ways to take part, together or alone:
//
//	read:  GET  /v1/provisioning[?namespace=][&watch=true]   List, or a line of JSON for each Event
//	asked: POST spec.capacity.webhook.url                    Wish -> Answer
//	       GET  Answer.Poll                                  Answer
//	       POST /v1/provisioning/{namespace}/{site}/result   Result -> Taken
//
// It depends on nothing, so that outside provisioners can import it.
package provisioning

import "time"

// Version is the apiVersion of wishes and lists.
const Version = "girassol.dev/provisioning/v1"

// HeaderIdempotencyKey carries a Wish's key.
const HeaderIdempotencyKey = "Idempotency-Key"

// Action is what is wished.
type Action string

// The actions.
const (
	// Provision makes nodes with at least MinGPUs allocatable GPUs by By.
	Provision Action = "Provision"
	// Release gives back what was provisioned.
	Release Action = "Release"
)

// Wish is what the operator asks of a provisioner. Asking again with the same key
// must change nothing and be answered with how the wish stands; a wish with
// another key replaces the one before.
type Wish struct {
	APIVersion string `json:"apiVersion"`
	Wish       Action `json:"wish"`
	Namespace  string `json:"namespace"`
	Site       string `json:"site"`
	// Federation the capacity is for; empty for a release after it is gone.
	Federation string `json:"federation,omitempty"`
	// Vendor of the GPUs: NVIDIA, AMD or CPU; empty: any.
	Vendor string `json:"vendor,omitempty"`
	// MinGPUs that must be allocatable.
	MinGPUs int32 `json:"minGPUs"`
	// Priority of the site among those of its federation, the highest first.
	Priority int32 `json:"priority"`
	// By is when a Provision must be fulfilled; then it is withdrawn.
	By *time.Time `json:"by,omitempty"`
	// Since the wish stands.
	Since time.Time `json:"since"`
	// Reason is a word of the operator's vocabulary, Message words for a person.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Key names the wish; visible ASCII, at most 200 characters.
	Key string `json:"key"`
	// Callback is the URL that takes a Result; empty if the operator has none.
	Callback string `json:"callback,omitempty"`
}

// Outcome is how far a provisioner is with a wish.
type Outcome string

// The outcomes.
const (
	// Pending: under way.
	Pending Outcome = "Pending"
	// Done: the capacity is there, or given back.
	Done Outcome = "Done"
	// Failed: the provisioner gives up; the next site is asked.
	Failed Outcome = "Failed"
)

// Answer to a Wish, status 200, and to a question at Poll. A Wish may be answered
// 202 without a body, which is Pending.
type Answer struct {
	State Outcome `json:"state"`
	// Message for a person; the first 512 characters are shown.
	Message string `json:"message,omitempty"`
	// Poll is where the outcome of a Pending wish can be asked for by GET: a path, or
	// a URL on the host that was asked. Without it the wish is asked again.
	Poll string `json:"poll,omitempty"`
}

// Result is what a provisioner tells by itself.
type Result struct {
	// Key of the wish it is about; any other than the present one is refused.
	Key     string  `json:"key"`
	State   Outcome `json:"state"`
	Message string  `json:"message,omitempty"`
}

// Taken answers a Result.
type Taken struct {
	// Result is Stored, or Duplicate when it had been taken before.
	Result string `json:"result"`
}

// Problem is the body of an answer with a status of 4xx or 5xx.
type Problem struct {
	// Reason is one CamelCase word.
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// State is how the operator sees a wish.
type State string

// The states.
const (
	// Wanted: not asked of anyone yet.
	Wanted State = "Wanted"
	// Asked: the provisioner has it and the clock runs.
	Asked State = "Asked"
	// Fulfilled: the GPUs are allocatable, or given back.
	Fulfilled State = "Done"
	// GivenUp: failed or too late; see RetryAt.
	GivenUp State = "Failed"
)

// Item is the present wish for one site, and how it stands.
type Item struct {
	Namespace  string     `json:"namespace"`
	Site       string     `json:"site"`
	Federation string     `json:"federation,omitempty"`
	Wish       Action     `json:"wish"`
	State      State      `json:"state"`
	Reason     string     `json:"reason,omitempty"`
	Message    string     `json:"message,omitempty"`
	By         *time.Time `json:"by,omitempty"`
	Since      time.Time  `json:"since"`
	RetryAt    *time.Time `json:"retryAt,omitempty"`
	Key        string     `json:"key"`
	Vendor     string     `json:"vendor,omitempty"`
	MinGPUs    int32      `json:"minGPUs"`
	Priority   int32      `json:"priority"`
	// Mode of the site's capacity: None, NodeLabel, Scale or Webhook.
	Mode string `json:"mode"`
}

// List of all wishes, ordered by namespace and site.
type List struct {
	APIVersion string `json:"apiVersion"`
	Items      []Item `json:"items"`
}

// EventType says what a line of a watch is.
type EventType string

// The types of events.
const (
	// Present: the item is as told; it is new, or has changed.
	Present EventType = "Present"
	// Gone: the site has no wish any more; only namespace and site are told.
	Gone EventType = "Gone"
	// Listed: all that was there at the start has been told.
	Listed EventType = "Listed"
	// Alive: nothing has changed for a while.
	Alive EventType = "Alive"
)

// Event is one line of a watch. A site that changes faster than its reader reads
// is told as it is last.
type Event struct {
	Type EventType `json:"type"`
	Item *Item     `json:"item,omitempty"`
}
