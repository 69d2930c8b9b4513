package kernel

// Block is the number of elements of one cosine transform.
const Block = 64

// DCT64 is the orthonormal DCT-II of each block of 64 elements:
//
//	X[k] = c(k) * sum_n x[n]*cos(pi*(n+1/2)*k/64),  c(0) = sqrt(1/64), else sqrt(2/64)
//
// in the factorisation of B. G. Lee (IEEE ASSP-32, 1984). The lengths must be
// equal and a multiple of 64; dst may be src.
func DCT64(dst, src []float32) {
	blocks("DCT64", dst, src)
	n := dctFast(dst, src)
	dst, src = dst[n:], src[n:]
	for len(dst) >= Block && len(src) >= Block {
		forward64((*[64]float32)(dst), (*[64]float32)(src))
		dst, src = dst[Block:], src[Block:]
	}
}

// IDCT64 is the inverse of DCT64, an orthonormal DCT-III, with the same rules.
func IDCT64(dst, src []float32) { IDCT64Before(dst, src, src, src) }

// IDCT64Before is IDCT64 for who goes on with a and b, which are as long: their
// memory is fetched meanwhile.
func IDCT64Before(dst, src, a, b []float32) {
	blocks("IDCT64", dst, src)
	sameLength("IDCT64", len(dst), len(a))
	sameLength("IDCT64", len(dst), len(b))
	n := idctFast(dst, src, a, b)
	dst, src = dst[n:], src[n:]
	for len(dst) >= Block && len(src) >= Block {
		inverse64((*[64]float32)(dst), (*[64]float32)(src))
		dst, src = dst[Block:], src[Block:]
	}
}

func blocks(op string, dst, src []float32) {
	sameLength(op, len(dst), len(src))
	if len(dst)%Block != 0 {
		panic("kernel: " + op + " needs whole blocks of 64 elements")
	}
}

// The factors 1/(2*cos(pi*(i+1/2)/n)) of one stage, as literals: a computed
// cosine may differ in its last bit between architectures.
var (
	lee64 = [32]float32{
		0.50015063602065099, 0.50135845244640837, 0.50378872568104427, 0.50747117207255529,
		0.51245147940822471, 0.51879271310533282, 0.52657731515426993, 0.53590981690799208,
		0.54692043798550881, 0.55976981294708016, 0.57465518403266004, 0.59181853585741658,
		0.61155734788250999, 0.63423893668840325, 0.66031980781370616, 0.69037212820021242,
		0.72512052237719853, 0.76549416497308909, 0.81270209081449044, 0.86834471522334812,
		0.93458359703640755, 1.0144082649970548, 1.1120716205797176, 1.233832737976571,
		1.3892939586328281, 1.5939722833856317, 1.8746759800084081, 2.2820500680051618,
		2.9246284281582186, 4.0846110781292506, 6.7967507116736357, 20.373878167231434,
	}
	lee32 = [16]float32{
		0.5006029982351963, 0.50547095989754366, 0.51544730992262455, 0.53104259108978417,
		0.55310389603444453, 0.58293496820613387, 0.62250412303566482, 0.67480834145500575,
		0.74453627100229845, 0.83934964541552704, 0.97256823786196069, 1.169439933432885,
		1.4841646163141663, 2.0577810099534116, 3.4076084184687188, 10.190008123548057,
	}
	lee16 = [8]float32{
		0.50241928618815571, 0.52249861493968888, 0.5669440348163577, 0.64682178335999013,
		0.78815462345125022, 1.0606776859903475, 1.7224470982383339, 5.1011486186891639,
	}
	lee8 = [4]float32{
		0.50979557910415917, 0.60134488693504528, 0.8999762231364157, 2.5629154477415062,
	}
)

const (
	scale0 = 0.125               // sqrt(1/64)
	scaleK = 0.17677669529663687 // sqrt(2/64)

	lee40 = 0.541196100146197  // 1/(2*cos(pi/8))
	lee41 = 1.3065629648763766 // 1/(2*cos(3*pi/8))
	lee20 = 0.7071067811865475 // 1/(2*cos(pi/4))
)

func forward64(dst, src *[64]float32) {
	var a, b [32]float32
	for i := range 32 {
		x, y := src[i], src[63-i]
		a[i] = x + y
		b[i] = float32((x - y) * lee64[i])
	}
	forward32(&a)
	forward32(&b)
	dst[0] = float32(a[0] * scale0)
	dst[1] = float32((b[0] + b[1]) * scaleK)
	for i := 1; i < 31; i++ {
		dst[2*i] = float32(a[i] * scaleK)
		dst[2*i+1] = float32((b[i] + b[i+1]) * scaleK)
	}
	dst[62] = float32(a[31] * scaleK)
	dst[63] = float32(b[31] * scaleK)
}

func forward32(v *[32]float32) {
	var a, b [16]float32
	for i := range 16 {
		x, y := v[i], v[31-i]
		a[i] = x + y
		b[i] = float32((x - y) * lee32[i])
	}
	forward16(&a)
	forward16(&b)
	for i := range 15 {
		v[2*i] = a[i]
		v[2*i+1] = b[i] + b[i+1]
	}
	v[30], v[31] = a[15], b[15]
}

func forward16(v *[16]float32) {
	var a, b [8]float32
	for i := range 8 {
		x, y := v[i], v[15-i]
		a[i] = x + y
		b[i] = float32((x - y) * lee16[i])
	}
	forward8(&a)
	forward8(&b)
	for i := range 7 {
		v[2*i] = a[i]
		v[2*i+1] = b[i] + b[i+1]
	}
	v[14], v[15] = a[7], b[7]
}

func forward8(v *[8]float32) {
	a0, b0 := v[0]+v[7], float32((v[0]-v[7])*lee8[0])
	a1, b1 := v[1]+v[6], float32((v[1]-v[6])*lee8[1])
	a2, b2 := v[2]+v[5], float32((v[2]-v[5])*lee8[2])
	a3, b3 := v[3]+v[4], float32((v[3]-v[4])*lee8[3])
	a0, a1, a2, a3 = forward4(a0, a1, a2, a3)
	b0, b1, b2, b3 = forward4(b0, b1, b2, b3)
	v[0], v[1], v[2], v[3] = a0, b0+b1, a1, b1+b2
	v[4], v[5], v[6], v[7] = a2, b2+b3, a3, b3
}

func forward4(x0, x1, x2, x3 float32) (y0, y1, y2, y3 float32) {
	a0, b0 := x0+x3, float32((x0-x3)*lee40)
	a1, b1 := x1+x2, float32((x1-x2)*lee41)
	y0, y2 = a0+a1, float32((a0-a1)*lee20)
	b0, b1 = b0+b1, float32((b0-b1)*lee20)
	return y0, b0 + b1, y2, b1
}

func inverse64(dst, src *[64]float32) {
	var a, b [32]float32
	a[0] = float32(src[0] * scale0)
	last := float32(src[1] * scaleK)
	b[0] = last
	for i := 1; i < 32; i++ {
		a[i] = float32(src[2*i] * scaleK)
		odd := float32(src[2*i+1] * scaleK)
		b[i] = last + odd
		last = odd
	}
	inverse32(&a)
	inverse32(&b)
	for i := range 32 {
		x, y := a[i], float32(b[i]*lee64[i])
		dst[i] = x + y
		dst[63-i] = x - y
	}
}

func inverse32(v *[32]float32) {
	var a, b [16]float32
	a[0], b[0] = v[0], v[1]
	for i := 1; i < 16; i++ {
		a[i] = v[2*i]
		b[i] = v[2*i-1] + v[2*i+1]
	}
	inverse16(&a)
	inverse16(&b)
	for i := range 16 {
		x, y := a[i], float32(b[i]*lee32[i])
		v[i] = x + y
		v[31-i] = x - y
	}
}

func inverse16(v *[16]float32) {
	var a, b [8]float32
	a[0], b[0] = v[0], v[1]
	for i := 1; i < 8; i++ {
		a[i] = v[2*i]
		b[i] = v[2*i-1] + v[2*i+1]
	}
	inverse8(&a)
	inverse8(&b)
	for i := range 8 {
		x, y := a[i], float32(b[i]*lee16[i])
		v[i] = x + y
		v[15-i] = x - y
	}
}

func inverse8(v *[8]float32) {
	a0, a1, a2, a3 := inverse4(v[0], v[2], v[4], v[6])
	b0, b1, b2, b3 := inverse4(v[1], v[1]+v[3], v[3]+v[5], v[5]+v[7])
	b0, b1 = float32(b0*lee8[0]), float32(b1*lee8[1])
	b2, b3 = float32(b2*lee8[2]), float32(b3*lee8[3])
	v[0], v[7] = a0+b0, a0-b0
	v[1], v[6] = a1+b1, a1-b1
	v[2], v[5] = a2+b2, a2-b2
	v[3], v[4] = a3+b3, a3-b3
}

func inverse4(x0, x1, x2, x3 float32) (y0, y1, y2, y3 float32) {
	c := float32(x2 * lee20)
	a0, a1 := x0+c, x0-c
	d := float32((x1 + x3) * lee20)
	b0, b1 := float32((x1+d)*lee40), float32((x1-d)*lee41)
	return a0 + b0, a1 + b1, a1 - b1, a0 - b0
}
