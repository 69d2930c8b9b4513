// Package codec owns the bytes of updates and deltas: the domain in which they
// live, how one direction's encoding writes them, and how hostile bytes are
// checked before anything is touched.
//
// It is pure. It must not know what a round, a site's weight or an outer step
// is, nor where the bytes come from: an io.ReaderAt reads them, an io.Writer
// takes them.
//
// # Domain
//
// A parameter tensor of rank 2 or more with at least MinSparse elements is
// compressed: it is flattened, and under the transform dct64 padded with zeros
// to a multiple of 64 and cut into blocks of 64 that go through the orthonormal
// DCT-II. All other parameters are small: they are taken as they are and are
// never cut. A domain vector holds the parameter tensors in layout order (by
// name), one after the other.
//
// # Payload
//
// All numbers are little-endian. A payload is a header of 20 bytes,
//
//	0  "GSFD"             magic
//	4  1                  version
//	5  transform          0 identity, 1 dct64
//	6  values             0 fp32, 1 bf16, 2 2bit, 3 8bit, 4 4bit, 5 1bit
//	7  group size         0 is 4096, else its power of two, 8 to 11
//	8  keepOneIn          uint32
//	12 layout             the first 8 bytes of the layout's digest; all zero
//	                      when the tensors' places are told apart (sections)
//
// then the parameters in layout order, the buffers in layout order (fp32, as
// they are after training, not differences) and the integers in layout order
// (raw). Small parameters are fp32 when values is fp32, else bf16. Compressed
// ones are
//
//   - fp32 or bf16 one after the other when keepOneIn is 1, else
//
//   - groups of the encoding's group size, the last one shorter. Each group is a
//     string of bits, least significant first, filled with zero bits to a whole
//     byte:
//
//     code      4 bits: 15 an empty group, all zero, nothing follows; else the
//     Rice parameter b of the indices, 0 to 11 (0 without indices)
//     shared    2bit: two levels in bf16, 0 <= low <= high; 8bit and 4bit: the
//     step in bf16, at least 2^-126; 1bit: the level in bf16, above 0
//     indices   only keepOneIn > 1: for each kept coefficient, in ascending
//     order, gap = index - previous index - 1 as gap>>b zero bits, a one bit
//     and the b low bits of gap
//     values    2bit: per kept coefficient a sign bit (1 negative) and a level
//     bit (1 high); 1bit: per kept coefficient a sign bit
//
//     after which the other values of the kept coefficients follow: fp32, bf16,
//     8bit as a byte each, the multiple of the step from -127 to 127, 4bit as half
//     a byte each, the first in the low half, from -7 to 7; both in two's
//     complement, and a half that is left over is zero.
//
// A group of n coefficients keeps max(1, round(n/keepOneIn)), the largest by
// absolute value, of equal ones the lower index.
//
// # Quantisation
//
// What the kept values of a group share is symmetric and found anew for each:
//
//   - 8bit and 4bit: the step is the largest absolute value divided by 127 or 7,
//     rounded to bf16; a value is the nearest multiple, ties to even, cut to 127 or
//     7 steps.
//   - 2bit: the nearer of two levels, the centroids of the absolute values by
//     Lloyd's iteration, ties to the lower one.
//   - 1bit: one level, the mean of the absolute values. A kept value of zero counts
//     as positive: where a group has fewer values than it keeps, prefer 2bit.
//
// A group whose step is below 2^-126, or whose level rounds to zero, is sent
// empty. What is lost by rounding and by the cut stays with the sender: of all it
// encodes, rest = x - decoded, one subtraction. Decoded values are encoded without
// loss.
//
// Values travel within ±MaxMagnitude; larger ones are cut to it when sent and
// refused when received, so that sums of any number of updates stay finite.
package codec
