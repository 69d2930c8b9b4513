//go:build !race

package wireguard

const raceDetector = false
