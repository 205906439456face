//go:build !race

package sum

func noteRead([]byte)  {}
func noteWrite([]byte) {}
