//go:build !race

package director

const raceDetector = false
