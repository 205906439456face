package arena

import (
	"fmt"
	"os"
	"regexp"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// TestMappingFlags checks what the kernel says of a mapping: aligned for huge pages, not copied by fork, not dumped.
func TestMappingFlags(t *testing.T) {
	s, err := CreateSegment(testOptions(""))
	require.NoError(t, err)
	defer s.Close(true)
	start := uintptr(unsafe.Pointer(unsafe.SliceData(s.Data())))
	require.Zero(t, start%StepBytes)
	smaps, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	re := regexp.MustCompile(fmt.Sprintf(`(?ms)^0*%x-%x .*?^VmFlags: (.*?)$`, start, start+uintptr(len(s.Data()))))
	flags := re.FindSubmatch(smaps)
	require.NotNil(t, flags, "mapping not found")
	require.Regexp(t, `\bdc\b`, string(flags[1]))
	require.Regexp(t, `\bdd\b`, string(flags[1]))
}
