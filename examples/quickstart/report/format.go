package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// unknown is what stands where a figure is not known.
const unknown = "–"

// fixed prints with so many decimals, unknown for nil.
func fixed(x *float64, decimals int) string {
	if x == nil || !finite(*x) {
		return unknown
	}
	return strconv.FormatFloat(*x, 'f', decimals, 64)
}

// sig prints with three significant digits and no exponent.
func sig(x float64) string {
	switch a := math.Abs(x); {
	case !finite(x):
		return unknown
	case a == 0:
		return "0"
	case a >= 99.95:
		return group(strconv.FormatFloat(x, 'f', 0, 64))
	case a >= 9.995:
		return strconv.FormatFloat(x, 'f', 1, 64)
	case a >= 0.9995:
		return strconv.FormatFloat(x, 'f', 2, 64)
	case a >= 0.0005:
		return strconv.FormatFloat(x, 'f', 3, 64)
	}
	return strconv.FormatFloat(x, 'e', 0, 64)
}

// kilograms prints a mass of CO2, always in kg so that a column compares.
func kilograms(x *float64) string {
	switch {
	case x == nil || !finite(*x):
		return unknown
	case *x > 0 && *x < 0.0005:
		return "<0.001 kg"
	}
	return sig(*x) + " kg"
}

// percent prints a ratio, unknown for nil.
func percent(x *float64) string {
	switch {
	case x == nil || !finite(*x):
		return unknown
	case math.Abs(*x) < 0.0995:
		return strconv.FormatFloat(*x*100, 'f', 1, 64) + " %"
	}
	return strconv.FormatFloat(*x*100, 'f', 0, 64) + " %"
}

// times prints a factor: "44x".
func times(x *float64) string {
	if x == nil || !finite(*x) {
		return unknown
	}
	return sig(*x) + "×"
}

// fewer says a ratio of bytes in words.
func fewer(x *float64) string {
	if x == nil || !finite(*x) || *x <= 0 {
		return unknown + " fewer"
	}
	if *x >= 1 {
		return times(x) + " fewer"
	}
	more := 1 / *x
	return times(&more) + " more"
}

// ByteSize prints bytes in decimal units.
func ByteSize(n float64) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}} {
		if n >= u.size*0.9995 {
			return sig(n/u.size) + " " + u.name
		}
	}
	return strconv.FormatFloat(n, 'f', 0, 64) + " B"
}

func byteSize(x *float64) string {
	if x == nil || !finite(*x) {
		return unknown
	}
	return ByteSize(*x)
}

// byteTick is ByteSize for an axis: 10 kB, not 10.0 kB.
func byteTick(n float64) string {
	number, unit, _ := strings.Cut(ByteSize(n), " ")
	if strings.Contains(number, ".") {
		number = strings.TrimRight(strings.TrimRight(number, "0"), ".")
	}
	return number + " " + unit
}

// countTick is Count for an axis.
func countTick(n float64) string {
	number, unit, found := strings.Cut(Count(n), " ")
	if !found {
		return number
	}
	if strings.Contains(number, ".") {
		number = strings.TrimRight(strings.TrimRight(number, "0"), ".")
	}
	return number + " " + unit
}

// Count prints a number with SI suffix: 1.2 M.
func Count(n float64) string {
	switch {
	case n >= 999.5e6:
		return sig(n/1e9) + " G"
	case n >= 999.5e3:
		return sig(n/1e6) + " M"
	case n >= 9995:
		return sig(n/1e3) + " k"
	}
	return group(strconv.FormatFloat(n, 'f', 0, 64))
}

// group puts thin spaces between thousands.
func group(digits string) string {
	sign := ""
	if strings.HasPrefix(digits, "-") {
		sign, digits = "-", digits[1:]
	}
	if len(digits) <= 4 {
		return sign + digits
	}
	var parts []string
	for len(digits) > 3 {
		parts = append([]string{digits[len(digits)-3:]}, parts...)
		digits = digits[:len(digits)-3]
	}
	return sign + digits + "\u202f" + strings.Join(parts, "\u202f")
}

func hours(h float64) string { return strconv.FormatFloat(h, 'f', 1, 64) }

// clockHours prints hours since the start: "6:35 h".
func clockHours(h float64) string {
	m := int(math.Round(h * 60))
	return fmt.Sprintf("%d:%02d h", m/60, m%60)
}

// short is a digest's beginning.
func short(digest string) string {
	if len(digest) > 12 {
		return digest[:12]
	}
	return digest
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// wrap breaks text between words at so many columns.
func wrap(text string, columns int) string {
	var b strings.Builder
	n := 0
	for i, word := range strings.Fields(text) {
		l := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case n+1+l > columns:
			b.WriteByte('\n')
			n = 0
		default:
			b.WriteByte(' ')
			n++
		}
		b.WriteString(word)
		n += l
	}
	return b.String()
}
