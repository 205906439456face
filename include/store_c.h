/* SPDX-License-Identifier: Apache-2.0
 *
 * The name under which programs written against the C++ Mooncake Store include its C interface. All of it is in
 * mooncake.h. */
#ifndef MOONCAKE_STORE_C_H
#define MOONCAKE_STORE_C_H
#include "mooncake.h"
#endif
