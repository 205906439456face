//go:build cgo && !norocksdb

package catalog_test

import (
	"testing"

	"github.com/kvcache-ai/mooncake-go/store/internal/catalog"
	"github.com/kvcache-ai/mooncake-go/store/internal/catalog/catalogtest"
)

func TestConformance(t *testing.T) {
	catalogtest.Conformance(t, func(t *testing.T) func() (catalog.Catalog, error) {
		dir := t.TempDir()
		return func() (catalog.Catalog, error) { return catalog.Open(dir) }
	})
}
