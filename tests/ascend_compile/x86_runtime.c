/* SPDX-License-Identifier: Apache-2.0 */
/* The one function that MLIR's lowered code calls: copies between two memrefs of any rank and stride. */
#include <stdint.h>
#include <string.h>

struct unranked {
    int64_t rank;
    void *descriptor;
};

struct ranked {
    char *allocated;
    char *aligned;
    int64_t offset;
    int64_t sizes_then_strides[];
};

static void copy(int64_t bytes, int64_t rank, const int64_t *sizes, const char *from, const int64_t *from_strides,
                 char *to, const int64_t *to_strides) {
    if (rank == 0) {
        memcpy(to, from, bytes);
        return;
    }
    for (int64_t i = 0; i < sizes[0]; i++)
        copy(bytes, rank - 1, sizes + 1, from + i * from_strides[0] * bytes, from_strides + 1,
             to + i * to_strides[0] * bytes, to_strides + 1);
}

void memrefCopy(int64_t bytes, struct unranked *from, struct unranked *to) {
    const int64_t rank = from->rank;
    const struct ranked *a = from->descriptor, *b = to->descriptor;
    copy(bytes, rank, a->sizes_then_strides, a->aligned + a->offset * bytes, a->sizes_then_strides + rank,
         b->aligned + b->offset * bytes, b->sizes_then_strides + rank);
}
