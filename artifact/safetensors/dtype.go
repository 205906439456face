package safetensors

import "fmt"

// DType is the type of a tensor's elements. The values are ordered by alignment, as the format's own implementation
// orders them; the writer puts larger ones first. They are not stable: store String.
type DType uint8

// The dtypes of the format. F4 packs two elements into a byte, F6 four into three bytes; a tensor of them is a whole
// number of bytes.
const (
	Bool DType = iota + 1 // one byte, 0 or 1
	F4                    // E2M1
	F6E2M3
	F6E3M2
	U8
	I8
	F8E5M2
	F8E4M3
	F8E8M0
	F8E4M3FNUZ
	F8E5M2FNUZ
	I16
	U16
	F16
	BF16
	I32
	U32
	F32
	C64 // two F32: real, imaginary
	F64
	I64
	U64
)

var dtypes = [...]struct {
	name string
	bits int64
}{
	Bool: {"BOOL", 8}, F4: {"F4", 4}, F6E2M3: {"F6_E2M3", 6}, F6E3M2: {"F6_E3M2", 6}, U8: {"U8", 8}, I8: {"I8", 8},
	F8E5M2: {"F8_E5M2", 8}, F8E4M3: {"F8_E4M3", 8}, F8E8M0: {"F8_E8M0", 8},
	F8E4M3FNUZ: {"F8_E4M3FNUZ", 8}, F8E5M2FNUZ: {"F8_E5M2FNUZ", 8},
	I16: {"I16", 16}, U16: {"U16", 16}, F16: {"F16", 16}, BF16: {"BF16", 16}, I32: {"I32", 32}, U32: {"U32", 32}, F32: {"F32", 32},
	C64: {"C64", 64}, F64: {"F64", 64}, I64: {"I64", 64}, U64: {"U64", 64},
}

// DTypes returns every dtype, smallest alignment first.
func DTypes() []DType {
	var all []DType
	for d := Bool; d.Valid(); d++ {
		all = append(all, d)
	}
	return all
}

// Valid says whether d is one of the constants.
func (d DType) Valid() bool { return d >= Bool && int(d) < len(dtypes) }

// String is the name in the header, such as "F8_E4M3".
func (d DType) String() string {
	if !d.Valid() {
		return fmt.Sprintf("DType(%d)", uint8(d))
	}
	return dtypes[d].name
}

// Bits is the size of one element, 0 when d is not valid.
func (d DType) Bits() int64 {
	if !d.Valid() {
		return 0
	}
	return dtypes[d].bits
}

// ParseDType finds a dtype by its name in the header, which is case-sensitive.
func ParseDType(name string) (DType, bool) {
	for d := Bool; d.Valid(); d++ {
		if dtypes[d].name == name {
			return d, true
		}
	}
	return 0, false
}
