/* What the fuzzer runs: the compiled module's own functions on one input, without Python around them.
 *
 * The input lies in a block of exactly its size, so that the sanitizer sees every byte read beside it.
 */

#include "../tubemq_spark/protocol/_speedups.c"

#include <stdlib.h>

enum { SEND_NUMBERS = 16, SEND_HEAD_BYTES = 9 };

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
    size_t rows = (size_t)count_of(&pieces->starts), size = (rows + 1) * sizeof(int32_t);
    int64_t total = measure_pieces(pieces);
    if (total < 0)
        return;
    int32_t *borders = malloc(size);
    uint8_t *target = malloc(total ? (size_t)total : 1);
    if (borders == NULL || target == NULL)
        abort();
    borders[0] = 0;
    if (!copy_pieces(pieces, target, 0, total, (uint8_t *)(borders + 1)) || borders[rows] != total)
        abort();
    Py_buffer texts = buffer_of(target, (size_t)total), ends = buffer_of(borders, size);
    Py_ssize_t *firsts = malloc((rows + 1) * sizeof *firsts);
    if (firsts == NULL || find_runs(&texts, &ends, firsts, (Py_ssize_t)rows) < (rows > 0))
        abort();
    free(firsts);
    if (total > 0) { /* as if a piece had become longer since it was measured */
        uint8_t *shorter = malloc((size_t)total - 1);
        if (shorter == NULL || copy_pieces(pieces, shorter, 0, total - 1, (uint8_t *)(borders + 1)))
            abort();
        free(shorter);
    }
    free(borders);
    free(target);
}

static void decode(Py_buffer *body) {
    Head head;
    Py_ssize_t count;
    if (!walk_fetch(body, &head, &count))
        return;
    size_t numbers = (size_t)count * sizeof(int64_t);
    int64_t *columns = malloc(count ? 4 * numbers : 1);
    uint8_t *damaged = malloc(count ? (size_t)count : 1);
    if (columns == NULL || damaged == NULL)
        abort();
    Columns found = {columns, columns + count, columns + 2 * count, columns + 3 * count, damaged};
    if (read_messages(body, &found, count)) {
        Pieces pieces = {*body, buffer_of(found.value_start, numbers), buffer_of(found.value_end, numbers)};
        put_together(&pieces);
    }
    free(columns);
    free(damaged);
}

/* Take the input as a frame, and as numbers for borders, which then are anything. */
static void unwrap(const Py_buffer *body) {
    Answer answer;
    if (measure_frame(body->buf, (size_t)body->len, &answer) && read_envelope(&answer)) {
        size_t size = answer.stream_size - answer.head_size;
        uint8_t *message = malloc(size ? size : 1);
        if (message == NULL)
            abort();
        copy_message(&answer, message);
        free(message);
    }
    size_t rows = (size_t)body->len / sizeof(int32_t);
    Py_ssize_t *firsts = malloc((rows + 1) * sizeof *firsts);
    Py_buffer half = buffer_of(body->buf, (size_t)body->len / 2);
    if (firsts == NULL)
        abort();
    if (rows)
        find_runs(&half, body, firsts, (Py_ssize_t)rows);
    free(firsts);
}

/* Take the front half as numbers, which then are anything, and begin at any address. */
static void gather_anything(Py_buffer *body) {
    size_t rows = (size_t)body->len / 4 / sizeof(int64_t), size = rows * sizeof(int64_t);
    uint8_t *numbers = malloc(2 * size + 1);
    if (numbers == NULL)
        abort();
    memcpy(numbers + 1, body->buf, 2 * size);
    Pieces pieces = {*body, buffer_of(numbers + 1, size), buffer_of(numbers + 1 + size, size)};
    put_together(&pieces);
    int64_t *sums = malloc(size + sizeof *sums);
    if (sums == NULL)
        abort();
    sum_checksums(&pieces, sums);
    free(sums);
    free(numbers);
}

/* Checksums do not depend on the way they are computed. */
static void sum_up(const Py_buffer *body) {
    if (crc32_of(body->buf, (size_t)body->len) != ~add_by_tables(~0u, body->buf, (size_t)body->len))
        abort();
}

static void read_all_answers(const Py_buffer *body) {
    size_t most = (size_t)body->len / (FRAME_HEAD_BYTES + SHORTEST_ANSWER), size = most * sizeof(int64_t);
    Py_buffer columns[ANSWER_COLUMNS];
    for (int i = 0; i < ANSWER_COLUMNS; i++) {
        void *numbers = malloc(size ? size : 1);
        if (numbers == NULL)
            abort();
        columns[i] = buffer_of(numbers, size);
    }
    const uint8_t *origin = body->buf;
    Cursor cursor = {origin, origin + body->len};
    Py_ssize_t count = read_answers(&cursor, columns);
    for (Py_ssize_t row = 0; row < count; row++)
        if (number_at(&columns[1], row) <= 0 || number_at(&columns[1], row) % INDEX_ENTRY_BYTES != 0)
            abort();
    for (int i = 0; i < ANSWER_COLUMNS; i++)
        free(columns[i].buf);
}

/* Take the next numbers of two bytes; the largest and the smallest stand for those of eight. */
static Py_buffer take_numbers(const uint8_t **at, const uint8_t *end, uint8_t count) {
    int64_t numbers[SEND_NUMBERS];
    size_t taken = 0;
    for (count %= SEND_NUMBERS; taken < count && end - *at >= 2; taken++, *at += 2) {
        int16_t number = (int16_t)((*at)[0] | (*at)[1] << 8);
        numbers[taken] = number == INT16_MAX ? INT64_MAX : number == INT16_MIN ? INT64_MIN : number;
    }
    return buffer_of(copy_of(numbers, taken * sizeof *numbers), taken * sizeof *numbers);
}

/* Take the input as columns of sends: how long they are, their numbers, and the bytes of all texts.
 * fuzz/speedups.py reads it in the same way. */
static void send_anything(const Py_buffer *body) {
    const uint8_t *at = body->buf, *end = at + body->len;
    if (body->len < SEND_HEAD_BYTES)
        return;
    const uint8_t *counts = at;
    Sends sends = {.timeout_ms = counts[7], .first_serial_no = (int8_t)counts[8] * ((int64_t)1 << 24)};
    at += SEND_HEAD_BYTES;
    Py_buffer *columns[] = {&sends.values.borders, &sends.prefixes.borders, &sends.backs.borders,
                            &sends.places.borders, &sends.codes, &sends.rows, &sends.counts};
    for (size_t column = 0; column < 7; column++)
        *columns[column] = take_numbers(&at, end, counts[column]);
    size_t size = (size_t)(end - at);
    void *texts = copy_of(at, size);
    sends.values.data = sends.prefixes.data = sends.backs.data = sends.places.data = buffer_of(texts, size);
    int64_t total = measure_sends(&sends);
    if (total >= 0) {
        uint8_t *wire = malloc(total ? (size_t)total : 1);
        if (wire == NULL || !write_sends(&sends, wire, wire + total))
            abort();
        free(wire);
    }
    free(texts);
    for (size_t column = 0; column < 7; column++)
        free(columns[column]->buf);
}

void run_target(const uint8_t *data, size_t size) {
    void *copy = copy_of(data, size);
    Py_buffer body = buffer_of(copy, size);
    decode(&body);
    unwrap(&body);
    gather_anything(&body);
    sum_up(&body);
    read_all_answers(&body);
    send_anything(&body);
    free(copy);
}
