/* What the fuzzer runs: the compiled module's own functions on one input, without Python around them.
 *
 * The input lies in a block of exactly its size, so that the sanitizer sees every byte read beside it.
 */

#include "../tubemq_spark/protocol/_speedups.c"

#include <stdlib.h>

void prepare_target(void) { prepare_checksums(); }

static void *copy_of(const void *data, size_t size) {
    void *copy = malloc(size ? size : 1);
    if (copy == NULL)
        abort();
    if (size)
        memcpy(copy, data, size);
    return copy;
}

static Py_buffer buffer_of(void *data, size_t size) {
    Py_buffer buffer = {.buf = data, .len = (Py_ssize_t)size};
    return buffer;
}

static void put_together(Pieces *pieces) {
    Py_ssize_t rows;
    int64_t total = measure_pieces(pieces, 1, &rows);
    if (total < 0)
        return;
    int32_t *borders = malloc(((size_t)rows + 1) * sizeof *borders);
    uint8_t *target = malloc(total ? (size_t)total : 1);
    if (borders == NULL || target == NULL)
        abort();
    copy_pieces(pieces, 1, borders, target);
    if (borders[rows] != total)
        abort();
    free(borders);
    free(target);
}

static void decode(Py_buffer *body) {
    size_t head_size, same_size;
    Py_ssize_t count;
    if (!walk_fetch(body, NULL, &head_size, &count))
        return;
    uint8_t *head = malloc(head_size ? head_size : 1);
    size_t numbers = (size_t)count * sizeof(int64_t);
    int64_t *columns = malloc(count ? 4 * numbers : 1);
    uint8_t *damaged = malloc(count ? (size_t)count : 1);
    if (head == NULL || columns == NULL || damaged == NULL)
        abort();
    walk_fetch(body, head, &same_size, &count);
    Columns found = {columns, columns + count, columns + 2 * count, columns + 3 * count, damaged};
    if (read_messages(body, &found, count)) {
        Pieces pieces = {*body, buffer_of(found.value_start, numbers), buffer_of(found.value_end, numbers)};
        put_together(&pieces);
    }
    free(head);
    free(columns);
    free(damaged);
}

/* Take the front half as numbers, which then are anything. */
static void gather_anything(Py_buffer *body) {
    size_t rows = (size_t)body->len / 4 / sizeof(int64_t), size = rows * sizeof(int64_t);
    int64_t *starts = copy_of(body->buf, size), *ends = copy_of((char *)body->buf + size, size);
    Pieces pieces = {*body, buffer_of(starts, size), buffer_of(ends, size)};
    put_together(&pieces);
    free(starts);
    free(ends);
}

void run_target(const uint8_t *data, size_t size) {
    void *copy = copy_of(data, size);
    Py_buffer body = buffer_of(copy, size);
    decode(&body);
    gather_anything(&body);
    free(copy);
}
