package arena

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const mib = "048576"

func TestMemLimits(t *testing.T) {
	meminfo := "MemTotal:       24000000 kB\nMemAvailable:       10240 kB\n"
	v2 := "30 25 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
	v1 := "35 31 0:35 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
		"36 31 0:36 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
		limit string
	}{
		"nothing readable": {nil, math.MaxInt64, "nothing"},
		"MemAvailable":     {map[string]string{"proc/meminfo": meminfo}, 10 << 20, "MemAvailable"},
		"v2 own group": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/mountinfo": v2, "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "5" + "242880\n", "sys/fs/cgroup/a/b/memory.current": "1" + mib + "\n",
			"sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/a/memory.current": "1" + mib + "\n",
		}, 4 << 20, "memory.max of cgroup /a/b"},
		"v2 ancestor, with cache": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/mountinfo": v2, "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/b/memory.current": "1" + mib + "\n",
			"sys/fs/cgroup/a/memory.max": "5242880\n", "sys/fs/cgroup/a/memory.current": "4194304\n",
			"sys/fs/cgroup/a/memory.stat": "anon 5\ninactive_file 1" + mib + "\nactive_file 2097152\n",
		}, 3 << 20, "memory.max of cgroup /a"},
		"v2 high": {map[string]string{
			"proc/self/mountinfo": v2, "proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "5242880",
			"sys/fs/cgroup/a/memory.high": "2097152", "sys/fs/cgroup/a/memory.current": "1" + mib,
		}, 1 << 20, "memory.high of cgroup /a"},
		"v2 over its limit": {map[string]string{
			"proc/self/mountinfo": v2, "proc/self/cgroup": "0::/a\n",
			"sys/fs/cgroup/a/memory.max": "1" + mib, "sys/fs/cgroup/a/memory.current": "2097152",
		}, -1 << 20, "memory.max of cgroup /a"},
		"v1": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/mountinfo": v1, "proc/self/cgroup": "5:cpu:/\n4:memory:/a/b\n0::/\n",
			"sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "9223372036854771712\n",
			"sys/fs/cgroup/memory/a/b/memory.usage_in_bytes": "1" + mib + "\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes":   "4194304\n",
			"sys/fs/cgroup/memory/a/memory.usage_in_bytes":   "3145728\n",
			"sys/fs/cgroup/memory/a/memory.stat":             "total_inactive_file 1" + mib + "\ninactive_file 5\n",
		}, 2 << 20, "memory.limit_in_bytes of cgroup /a"},
		"v1 in a container that sees its subtree": {map[string]string{
			"proc/self/mountinfo":                        "35 31 0:35 /docker/7 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			"proc/self/cgroup":                           "4:hugetlb,memory:/docker/7/x\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "4194304", "sys/fs/cgroup/memory/memory.usage_in_bytes": "0",
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "3145728", "sys/fs/cgroup/memory/x/memory.usage_in_bytes": "0",
		}, 3 << 20, "memory.limit_in_bytes of cgroup /x"},
		"v2 outside the mounted subtree": {map[string]string{
			"proc/self/mountinfo": v2, "proc/self/cgroup": "0::/../other\n",
			"sys/fs/cgroup/memory.max": "4194304", "sys/fs/cgroup/memory.current": "0",
		}, 4 << 20, "memory.max of cgroup /"},
		"rubbish": {map[string]string{
			"proc/meminfo": "MemAvailable: lots\n", "proc/self/mountinfo": "- - -\n\n - cgroup2\n1 2 3 4 - cgroup2 a b\n",
			"proc/self/cgroup": ":\n0::\n4:memory\n",
		}, math.MaxInt64, "nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for path, content := range c.files {
				require.NoError(t, os.MkdirAll(filepath.Join(root, filepath.Dir(path)), 0o700))
				require.NoError(t, os.WriteFile(filepath.Join(root, path), []byte(content), 0o600))
			}
			l := MemLimits{Root: root, Headroom: -1}
			got, limit := l.Available()
			require.Equal(t, c.want, got)
			require.Equal(t, c.limit, limit)
			if c.want == math.MaxInt64 {
				require.NoError(t, l.Check(1<<60))
				return
			}
			require.NoError(t, l.Check(max(c.want, 0)))
			err := l.Check(max(c.want, 0) + 1)
			require.ErrorIs(t, err, ErrLimit)
			require.ErrorContains(t, err, c.limit)
			l.Headroom = 1 << 19
			got, _ = l.Available()
			require.Equal(t, c.want-1<<19, got)
		})
	}
}

// TestMemLimitsHere checks that this machine's own limits are found.
func TestMemLimitsHere(t *testing.T) {
	n, limit := MemLimits{}.Available()
	t.Logf("%d MiB by %s", n>>20, limit)
	require.NotEqual(t, "nothing", limit)
	require.ErrorIs(t, MemLimits{}.Check(1<<60), ErrLimit)
}
