package wire

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// What generated code makes of a message can be much larger than the message: an
// empty entry of a list has two bytes on the wire and a hundred in memory. So what
// strangers send is counted before it is decoded. A message that is beyond the
// bounds is kept as it came, as unknown fields, and Oversize says so: whoever
// handles it answers with a reason, which a codec cannot.
const (
	// MaxSessionMessage is the most bytes of a member's message in its session.
	MaxSessionMessage = 64 << 10
	// MaxPushHeader is the most bytes of an update's header.
	MaxPushHeader = 2 << 20
	// MaxSections of an update whose tensors have an order of its own.
	MaxSections = 1 << 14
	// MaxEntries of each other list and map of an update's header.
	MaxEntries = 1 << 11
)

// Fields of PushHeader that repeat.
const (
	headerTensors    protowire.Number = 9
	headerEvaluation protowire.Number = 18
	headerMetrics    protowire.Number = 19
	headerConsumed   protowire.Number = 20
	metricsField     protowire.Number = 4 // of Evaluation
)

// headerExcess says what of a header is beyond the bounds; empty if nothing is.
func headerExcess(b []byte) string {
	if len(b) > MaxPushHeader {
		return fmt.Sprintf("a header of %d bytes, at most %d", len(b), MaxPushHeader)
	}
	counts := map[protowire.Number]int{}
	for len(b) > 0 {
		n, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return "" // decoding it will fail
		}
		b = b[size:]
		if size = protowire.ConsumeFieldValue(n, kind, b); size < 0 {
			return ""
		}
		value := b[:size]
		b = b[size:]
		if kind != protowire.BytesType {
			continue
		}
		inside, _ := protowire.ConsumeBytes(value)
		switch n {
		case headerTensors:
			counts[n]++
			if rank := shapeEntries(inside); rank > maxShape {
				return fmt.Sprintf("a tensor of %d dimensions, at most %d", rank, maxShape)
			}
		case headerMetrics, headerConsumed:
			counts[n]++
		case headerEvaluation:
			counts[n] += entries(inside, metricsField)
		}
		if most := most(n); counts[n] > most {
			return fmt.Sprintf("more than %d entries of %s", most, pushHeaderFields.ByNumber(n).Name())
		}
	}
	return ""
}

var pushHeaderFields = (*coordinatorv1.PushHeader)(nil).ProtoReflect().Descriptor().Fields()

func most(n protowire.Number) int {
	if n == headerTensors {
		return MaxSections
	}
	return MaxEntries
}

// maxShape is far above the rank of any tensor, and what an encoder may write of it.
const maxShape = 64

// shapeEntries bounds the length of a section's shape: a packed list has an entry
// for each of its bytes at most.
func shapeEntries(section []byte) int {
	const shape protowire.Number = 3
	longest := 0
	fieldsOf(section, func(n protowire.Number, kind protowire.Type, value []byte) {
		if n != shape {
			return
		}
		if kind != protowire.BytesType {
			longest++
			return
		}
		packed, _ := protowire.ConsumeBytes(value)
		for _, c := range packed {
			if c < 0x80 {
				longest++
			}
		}
	})
	return longest
}

// entries of one field.
func entries(b []byte, field protowire.Number) int {
	n := 0
	fieldsOf(b, func(number protowire.Number, _ protowire.Type, _ []byte) {
		if number == field {
			n++
		}
	})
	return n
}

// fieldsOf visits the fields of a message as far as it can be read.
func fieldsOf(b []byte, visit func(protowire.Number, protowire.Type, []byte)) {
	for len(b) > 0 {
		n, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return
		}
		b = b[size:]
		if size = protowire.ConsumeFieldValue(n, kind, b); size < 0 {
			return
		}
		visit(n, kind, b[:size])
		b = b[size:]
	}
}

// excess is headerExcess for all headers of a PushRequest: generated code joins them
// into one, as if they stood behind each other.
func excess(b []byte) string {
	var joined []byte
	fieldsOf(b, func(n protowire.Number, kind protowire.Type, value []byte) {
		if n == protowire.Number(tagHeader>>3) && kind == protowire.BytesType {
			header, _ := protowire.ConsumeBytes(value)
			joined = append(joined, header...)
		}
	})
	return headerExcess(joined)
}

// keepRaw makes m hold bytes that were not decoded.
func keepRaw(m proto.Message, b []byte) {
	proto.Reset(m)
	m.ProtoReflect().SetUnknown(protoreflect.RawFields(b))
}

// Oversize says why a message was not decoded; empty if it was.
func Oversize(m proto.Message) string {
	b := m.ProtoReflect().GetUnknown()
	switch m.(type) {
	case *coordinatorv1.SessionRequest:
		if len(b) > MaxSessionMessage {
			return fmt.Sprintf("a session's message of %d bytes, at most %d", len(b), MaxSessionMessage)
		}
	case *coordinatorv1.PushHeader:
		return headerExcess(b)
	case *coordinatorv1.PushRequest:
		return excess(b)
	}
	return ""
}
