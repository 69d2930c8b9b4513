package kernel

// Axpy adds w*src to dst: dst[i] += float32(w*src[i]). The lengths must be
// equal; dst and src may be the same slice but must not overlap otherwise.
func Axpy(dst []float32, w float32, src []float32) {
	sameLength("Axpy", len(dst), len(src))
	n := axpyFast(dst, w, src)
	dst, src = dst[n:], src[n:]
	for len(dst) >= 8 && len(src) >= 8 {
		d, s := (*[8]float32)(dst), (*[8]float32)(src)
		d0 := d[0] + float32(w*s[0])
		d1 := d[1] + float32(w*s[1])
		d2 := d[2] + float32(w*s[2])
		d3 := d[3] + float32(w*s[3])
		d4 := d[4] + float32(w*s[4])
		d5 := d[5] + float32(w*s[5])
		d6 := d[6] + float32(w*s[6])
		d7 := d[7] + float32(w*s[7])
		d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7] = d0, d1, d2, d3, d4, d5, d6, d7
		dst, src = dst[8:], src[8:]
	}
	for i := range dst {
		dst[i] += float32(w * src[i])
	}
}

// AxpyBF16 adds w times the little-endian bfloat16 values of src to dst, rounded as
// in Axpy; src has 2*len(dst) bytes.
func AxpyBF16(dst []float32, w float32, src []byte) {
	sameLength("AxpyBF16", 2*len(dst), len(src))
	n := axpyBF16Fast(dst, w, src)
	dst, src = dst[n:], src[2*n:]
	for i := range dst {
		dst[i] += float32(w * FromBF16(uint16(src[2*i])|uint16(src[2*i+1])<<8))
	}
}

// Nesterov is the outer step in PyTorch's form, element by element:
//
//	m     = mu*m + g
//	theta = theta - eta*(g + mu*m)      with the new m
//
// g is the merged pseudo-gradient, start minus end of local training. Its gain
// identity: with eta 1 the step is (1+mu)*g + mu^2*m_old. The lengths must be
// equal.
func Nesterov(theta, m, g []float32, eta, mu float32) {
	sameLength("Nesterov", len(theta), len(m))
	sameLength("Nesterov", len(theta), len(g))
	n := nesterovFast(theta, m, g, eta, mu)
	theta, m, g = theta[n:], m[n:], g[n:]
	for len(theta) >= 4 && len(m) >= 4 && len(g) >= 4 {
		t, v, d := (*[4]float32)(theta), (*[4]float32)(m), (*[4]float32)(g)
		g0, g1, g2, g3 := d[0], d[1], d[2], d[3]
		m0 := float32(mu*v[0]) + g0
		m1 := float32(mu*v[1]) + g1
		m2 := float32(mu*v[2]) + g2
		m3 := float32(mu*v[3]) + g3
		v[0], v[1], v[2], v[3] = m0, m1, m2, m3
		t0 := t[0] - float32(eta*(g0+float32(mu*m0)))
		t1 := t[1] - float32(eta*(g1+float32(mu*m1)))
		t2 := t[2] - float32(eta*(g2+float32(mu*m2)))
		t3 := t[3] - float32(eta*(g3+float32(mu*m3)))
		t[0], t[1], t[2], t[3] = t0, t1, t2, t3
		theta, m, g = theta[4:], m[4:], g[4:]
	}
	for i := range theta {
		m[i] = float32(mu*m[i]) + g[i]
		theta[i] -= float32(eta * (g[i] + float32(mu*m[i])))
	}
}
