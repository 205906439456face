// Package safetensors reads and writes the safetensors format, as https://github.com/huggingface/safetensors describes
// it (README, "Format"), and the index of a model that is split into several such files.
//
//	8 bytes   N, little endian, at most 100,000,000
//	N bytes   a JSON object, beginning with "{", padded with spaces at the end:
//	          {"name": {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]}, "__metadata__": {"k": "v"}, ...}
//	the rest  the tensors' bytes, little endian, row-major; data_offsets count from here
//
// The tensors cover the rest without holes, overlaps or trailing bytes. The reader accepts what version 0.8.0 of the Python
// package accepts, and the same values, but refuses what is ambiguous or outside the description: duplicate keys,
// unknown fields, a null __metadata__, a header that does not begin with "{", a tensor that is a JSON array, a dtype that is a
// JSON object, and dimensions of 2^63 and more.
//
// Errors about a file match ErrInvalid. The package takes no lock and starts no goroutine; a Header and an Index may
// be read by many goroutines.
package safetensors
