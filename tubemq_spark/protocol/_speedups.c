/* The hot loops of reading and sending, compiled: the same results as their Python twins, to the byte.
 *
 * Modules of protocol/, and source/arrow.py, call these functions where the module was built and hand them plain
 * buffers; each has a Python twin there, which stands beside the call. A function that meets bytes which are not laid out as
 * TubeMQ's brokers write them answers None or stops, and the Python twin decides what they mean: so all errors are
 * raised there, and this file has none of its own but for callers that break its rules.
 *
 * Rules, since the bytes come from a network:
 *   - a length is read once, since others may write to the data meanwhile; it is compared with the bytes that are
 *     there before it is used, and nothing is allocated from one;
 *   - numbers of bytes are size_t or int64_t, and sums of two lengths cannot overflow: each is at most 2^31;
 *   - no recursion, no state but what checksums need, which is written once at import;
 *   - the GIL is released where only buffers are touched; their exporters are held meanwhile.
 */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum {
    TAG_MESSAGE_ID = 0x08,
    TAG_CHECKSUM = 0x10,
    TAG_PAYLOAD = 0x1A,
    TAG_FLAG = 0x20,
    TAG_MESSAGE = 0x22,
    TAG_ERROR_TEXT = 0x1A,
    FLAG_ATTRIBUTES = 1,
    ATTRIBUTE_LENGTH_BYTES = 4,
    LEAST_MESSAGE_BYTES = 8,
    LENGTH_LIMIT = INT32_MAX,
    CHUNK_LIMIT = 8192,
    CHUNK_HEAD_BYTES = 4,
    CHUNKS_LIMIT = 3584,
    FRAME_HEAD_BYTES = 16,
    INDEX_ENTRY_BYTES = 28,
};

static const uint32_t FRAME_TOKEN = 0xFF7FF4FE;

/* ---- checksums: CRC-32 as zlib computes it, by sixteen tables or by multiplying polynomials */

static uint32_t crc_tables[16][256];

static void fill_crc_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t sum = byte;
        for (int bit = 0; bit < 8; bit++)
            sum = (sum >> 1) ^ (sum & 1 ? 0xEDB88320u : 0);
        crc_tables[0][byte] = sum;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int table = 1; table < 16; table++) {
            uint32_t sum = crc_tables[table - 1][byte];
            crc_tables[table][byte] = (sum >> 8) ^ crc_tables[0][sum & 0xFF];
        }
}

static uint32_t load_little_endian(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint32_t four_bytes(int table, uint32_t word) {
    return crc_tables[table + 3][word & 0xFF] ^ crc_tables[table + 2][word >> 8 & 0xFF] ^
           crc_tables[table + 1][word >> 16 & 0xFF] ^ crc_tables[table][word >> 24];
}

/* Take more bytes into a sum, which is not inverted here. */
static uint32_t add_by_tables(uint32_t sum, const uint8_t *data, size_t size) {
    for (; size >= 16; data += 16, size -= 16)
        sum = four_bytes(12, load_little_endian(data) ^ sum) ^ four_bytes(8, load_little_endian(data + 4)) ^
              four_bytes(4, load_little_endian(data + 8)) ^ four_bytes(0, load_little_endian(data + 12));
    for (; size >= 4; data += 4, size -= 4)
        sum = four_bytes(0, load_little_endian(data) ^ sum);
    for (; size > 0; data++, size--)
        sum = (sum >> 8) ^ crc_tables[0][(sum ^ *data) & 0xFF];
    return sum;
}

#if defined(__x86_64__) && defined(__GNUC__)

#include <emmintrin.h>
#include <wmmintrin.h>

/* Folding, as in Intel's "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ" of 2009: 16 bytes times x^n,
 * modulo the polynomial, may be added to the 16 bytes that lie n bits behind them. The 16 bytes that are left have
 * the same sum as all; the tables take what is shorter than that.
 */

enum { LANE_BYTES = 16, BLOCK_BYTES = 4 * LANE_BYTES };

static bool can_multiply;

static void look_at_processor(void) { can_multiply = __builtin_cpu_supports("pclmul"); }

__attribute__((target("pclmul"))) static __m128i fold(__m128i lane, __m128i powers, __m128i behind) {
    __m128i low = _mm_clmulepi64_si128(lane, powers, 0x00), high = _mm_clmulepi64_si128(lane, powers, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), behind);
}

static __m128i load_lane(const uint8_t *at) { return _mm_loadu_si128((const __m128i *)(const void *)at); }

/* Reduce 16 bytes to their sum (Barrett's reduction, from 128 bits over 96 and 64 to 32). */
__attribute__((target("pclmul"))) static uint32_t reduce(__m128i lane) {
    const __m128i powers = _mm_set_epi64x(0x0CCAA009E, 0x163CD6124);     /* x^96 and x^64 */
    const __m128i polynomial = _mm_set_epi64x(0x1F7011641, 0x1DB710641); /* its inverse, and itself */
    const __m128i word = _mm_set_epi32(0, 0, 0, -1);
    lane = _mm_xor_si128(_mm_srli_si128(lane, 8), _mm_clmulepi64_si128(lane, powers, 0x10));
    lane = _mm_xor_si128(_mm_srli_si128(lane, 4), _mm_clmulepi64_si128(_mm_and_si128(lane, word), powers, 0x00));
    __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(lane, word), polynomial, 0x10);
    lane = _mm_xor_si128(lane, _mm_clmulepi64_si128(_mm_and_si128(quotient, word), polynomial, 0x00));
    return (uint32_t)_mm_cvtsi128_si32(_mm_srli_si128(lane, 4));
}

/* Take at least a block of bytes into a sum. The lanes have names: an array of them would lie in memory. */
__attribute__((target("pclmul"))) static uint32_t add_by_folding(uint32_t sum, const uint8_t *data,
                                                                 size_t size) {
    /* x^(n+32) and x^(n-32), bits reflected and shifted by one, for n of a block and of a lane. */
    const __m128i block_powers = _mm_set_epi64x(0x1C6E41596, 0x154442BD4);
    const __m128i lane_powers = _mm_set_epi64x(0x0CCAA009E, 0x1751997D0);
    __m128i first = _mm_xor_si128(load_lane(data), _mm_cvtsi32_si128((int)sum));
    __m128i second = load_lane(data + LANE_BYTES);
    __m128i third = load_lane(data + 2 * LANE_BYTES);
    __m128i last = load_lane(data + 3 * LANE_BYTES);
    for (data += BLOCK_BYTES, size -= BLOCK_BYTES; size >= BLOCK_BYTES; data += BLOCK_BYTES, size -= BLOCK_BYTES) {
        first = fold(first, block_powers, load_lane(data));
        second = fold(second, block_powers, load_lane(data + LANE_BYTES));
        third = fold(third, block_powers, load_lane(data + 2 * LANE_BYTES));
        last = fold(last, block_powers, load_lane(data + 3 * LANE_BYTES));
    }
    last = fold(fold(fold(first, lane_powers, second), lane_powers, third), lane_powers, last);
    for (; size >= LANE_BYTES; data += LANE_BYTES, size -= LANE_BYTES)
        last = fold(last, lane_powers, load_lane(data));
    return add_by_tables(reduce(last), data, size);
}

static uint32_t add_to_sum(uint32_t sum, const uint8_t *data, size_t size) {
    bool by_folding = can_multiply && size >= BLOCK_BYTES;
    return by_folding ? add_by_folding(sum, data, size) : add_by_tables(sum, data, size);
}

#else

static void look_at_processor(void) {}

static uint32_t add_to_sum(uint32_t sum, const uint8_t *data, size_t size) {
    return add_by_tables(sum, data, size);
}

#endif

static void prepare_checksums(void) {
    fill_crc_tables();
    look_at_processor();
}

static uint32_t crc32_of(const uint8_t *data, size_t size) { return ~add_to_sum(~0u, data, size); }

PyDoc_STRVAR(crc32_doc,
             "crc32(data, by_tables, /)\n--\n\n"
             "Return the CRC-32 of bytes, as zlib does; ``by_tables`` chooses the way for any processor.");

static PyObject *crc32(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer data;
    int by_tables;
    if (!PyArg_ParseTuple(arguments, "y*p:crc32", &data, &by_tables))
        return NULL;
    size_t size = (size_t)data.len;
    uint32_t sum = by_tables ? ~add_by_tables(~0u, data.buf, size) : crc32_of(data.buf, size);
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(sum);
}

/* ---- protobuf fields */

typedef struct {
    const uint8_t *at;
    const uint8_t *end;
} Cursor;

/* Read a varint of at most ten bytes whose tenth is 0 or 1, as protobuf does. */
static bool read_varint(Cursor *cursor, uint64_t *value) {
    /* Not through the cursor: a byte may lie in it, for all that the compiler knows. */
    const uint8_t *at = cursor->at, *end = cursor->end;
    uint64_t found = 0;
    for (int shift = 0; shift < 64 && at < end; shift += 7) {
        uint8_t byte = *at++;
        if (shift == 63 && byte > 1)
            return false;
        found |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            cursor->at = at;
            *value = found;
            return true;
        }
    }
    return false;
}

static bool read_field(Cursor *cursor, uint8_t tag, uint64_t *value) {
    return cursor->at < cursor->end && *cursor->at++ == tag && read_varint(cursor, value);
}

/* Read a length of at most five bytes, and pass over so many bytes, which must be there. */
static bool read_piece(Cursor *cursor, const uint8_t **start, const uint8_t **end) {
    const uint8_t *before = cursor->at;
    uint64_t length;
    if (!read_varint(cursor, &length) || cursor->at - before > 5)
        return false;
    if (length > LENGTH_LIMIT || length > (uint64_t)(cursor->end - cursor->at))
        return false;
    *start = cursor->at;
    *end = cursor->at += length;
    return true;
}

/* ---- frames of answers (RpcConnHeader, ResponseHeader, RspResponseBody) */

static uint32_t load_big_endian(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | (uint32_t)at[3];
}

/* What a frame carries. */
typedef struct {
    uint32_t serial_no;
    uint8_t method;
    const uint8_t *first; /* its first chunk */
    uint32_t first_size;
    size_t stream_size, head_size;
} Answer;

/* Measure a frame whose chunks are full but for the last one; false when it is not exactly these bytes. */
static bool measure_frame(const uint8_t *at, size_t size, Answer *answer) {
    if (size < FRAME_HEAD_BYTES || load_big_endian(at) != FRAME_TOKEN)
        return false;
    uint32_t chunks = load_big_endian(at + 8);
    answer->serial_no = load_big_endian(at + 4);
    answer->first = at + FRAME_HEAD_BYTES;
    if (chunks == 0 || chunks > CHUNKS_LIMIT)
        return false;
    size_t full = (size_t)(chunks - 1) * (CHUNK_HEAD_BYTES + CHUNK_LIMIT);
    const size_t last = FRAME_HEAD_BYTES - CHUNK_HEAD_BYTES + full;
    if (size < last + CHUNK_HEAD_BYTES)
        return false;
    for (size_t place = FRAME_HEAD_BYTES - CHUNK_HEAD_BYTES; place < last; place += CHUNK_HEAD_BYTES + CHUNK_LIMIT)
        if (load_big_endian(at + place) != CHUNK_LIMIT)
            return false;
    uint32_t last_size = load_big_endian(at + last);
    answer->first_size = chunks == 1 ? last_size : CHUNK_LIMIT;
    answer->stream_size = (size_t)(chunks - 1) * CHUNK_LIMIT + last_size;
    return last_size <= CHUNK_LIMIT && size == last + CHUNK_HEAD_BYTES + last_size;
}

/* Read what precedes the message of a successful answer, which must end with its frame. */
static bool read_envelope(Answer *answer) {
    static const uint8_t start[] = {
        2, 0x08, 1,          /* RpcConnHeader{flag=1} */
        4, 0x08, 0, 0x18, 3, /* ResponseHeader{status=SUCCESS, protocolVer=3} */
    };
    Cursor cursor = {answer->first, answer->first + answer->first_size};
    uint64_t size;
    if (answer->first_size < sizeof start || memcmp(cursor.at, start, sizeof start) != 0)
        return false;
    cursor.at += sizeof start;
    if (!read_varint(&cursor, &size) || size != answer->stream_size - (size_t)(cursor.at - answer->first))
        return false;
    if (cursor.end - cursor.at < 3 || cursor.at[0] != 0x08 || cursor.at[1] >= 0x80 || cursor.at[2] != 0x12)
        return false;
    answer->method = cursor.at[1];
    cursor.at += 3;
    if (!read_varint(&cursor, &size))
        return false;
    answer->head_size = (size_t)(cursor.at - answer->first);
    return size == answer->stream_size - answer->head_size;
}

/* Put the message's parts together. */
static void copy_message(const Answer *answer, uint8_t *target) {
    const uint8_t *at = answer->first + answer->head_size;
    size_t left = answer->stream_size - answer->head_size, here = answer->first_size - answer->head_size;
    for (;;) {
        memcpy(target, at, here);
        target += here;
        left -= here;
        if (left == 0)
            return;
        at += here + CHUNK_HEAD_BYTES;
        here = left < CHUNK_LIMIT ? left : CHUNK_LIMIT;
    }
}

PyDoc_STRVAR(unwrap_answer_doc,
             "unwrap_answer(data, /)\n--\n\n"
             "Return the serial number, the method and the message of a successful answer, when the data are\n"
             "the frame of one and nothing else.");

static PyObject *unwrap_answer(PyObject *self, PyObject *argument) {
    (void)self;
    Py_buffer data;
    Answer frame;
    PyObject *message = NULL, *answer = NULL;
    if (PyObject_GetBuffer(argument, &data, PyBUF_SIMPLE) < 0)
        return NULL;
    if (!measure_frame(data.buf, (size_t)data.len, &frame) || !read_envelope(&frame)) {
        answer = Py_NewRef(Py_None);
        goto end;
    }
    message = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(frame.stream_size - frame.head_size));
    if (message == NULL)
        goto end;
    copy_message(&frame, (uint8_t *)PyBytes_AsString(message));
    answer = Py_BuildValue("(iiN)", (int32_t)frame.serial_no, (int)frame.method, message);
end:
    PyBuffer_Release(&data);
    return answer;
}

/* ---- answers to fetches (GetMessageResponseB2C) */

enum {
    SUCCESS = 1,
    ERROR_CODE = 2,
    CURRENT_OFFSET = 5,
    WAIT_MS = 6,
    DATA_LAG = 8,
    REQUIRE_SLOW = 9,
    MAX_OFFSET = 10,
    HEAD_FIELDS,
};

/* The fields of an answer that are not messages, by their numbers; the last one of a number counts. */
typedef struct {
    uint64_t numbers[HEAD_FIELDS];
    unsigned present; /* a bit for each number */
    const uint8_t *text, *text_end;
} Head;

/* Read one field that is not a message: those of the answer's head are numbers, and one text. */
static bool read_head_field(Cursor *cursor, Head *head) {
    uint8_t tag = *cursor->at++;
    switch (tag) {
    case TAG_ERROR_TEXT:
        return read_piece(cursor, &head->text, &head->text_end);
    case 0x08: /* success */
    case 0x10: /* errCode */
    case 0x28: /* currOffset */
    case 0x30: /* minLimitTime */
    case 0x38: /* escFlowCtrl */
    case 0x40: /* currDataDlt */
    case 0x48: /* requireSlow */
    case 0x50: /* maxOffset */
        head->present |= 1u << (tag >> 3);
        return read_varint(cursor, &head->numbers[tag >> 3]);
    default:
        return false;
    }
}

/* Pass over the next message; false where none is next, or it is not whole. */
static bool next_message(Cursor *cursor, Cursor *message) {
    if (cursor->at >= cursor->end || *cursor->at != TAG_MESSAGE)
        return false;
    cursor->at++;
    return read_piece(cursor, &message->at, &message->end);
}

/* Read the head, and count the messages. */
static bool walk_fetch(const Py_buffer *body, Head *head, Py_ssize_t *count) {
    Cursor cursor = {body->buf, (const uint8_t *)body->buf + body->len};
    Cursor message;
    *head = (Head){.present = 0};
    *count = 0;
    while (cursor.at < cursor.end) {
        if (*cursor.at != TAG_MESSAGE) {
            if (!read_head_field(&cursor, head))
                return false;
        } else if (!next_message(&cursor, &message))
            return false;
        else
            *count += 1;
    }
    /* protobuf says which required field is missing */
    return (head->present & 1u << SUCCESS) && (head->present & 1u << ERROR_CODE) &&
           *count <= body->len / LEAST_MESSAGE_BYTES;
}

static long long number_or_absent(const Head *head, int field) {
    return head->present & 1u << field ? (int64_t)head->numbers[field] : -1;
}

/* Return the text of an error; NULL without an exception when it is not UTF-8. */
static PyObject *text_of(const Head *head) {
    if (head->text == NULL)
        return PyUnicode_FromStringAndSize("", 0);
    PyObject *text = PyUnicode_DecodeUTF8((const char *)head->text, head->text_end - head->text, "strict");
    if (text == NULL && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError))
        PyErr_Clear();
    return text;
}

PyDoc_STRVAR(outline_fetch_doc,
             "outline_fetch(body, /)\n--\n\n"
             "Return the fields of ``FetchHeader`` of a fetch response, and how many messages it has.");

static PyObject *outline_fetch(PyObject *self, PyObject *argument) {
    (void)self;
    Py_buffer body;
    Head head;
    Py_ssize_t count;
    PyObject *text = NULL, *answer = NULL;
    if (PyObject_GetBuffer(argument, &body, PyBUF_SIMPLE) < 0)
        return NULL;
    if (walk_fetch(&body, &head, &count) && (text = text_of(&head)) != NULL) {
        PyObject *max_offset = head.present & 1u << MAX_OFFSET
                                   ? PyLong_FromLongLong(number_or_absent(&head, MAX_OFFSET))
                                   : Py_NewRef(Py_None);
        if (max_offset != NULL)
            answer = Py_BuildValue("(NiNLNiLNn)", PyBool_FromLong(head.numbers[SUCCESS] != 0),
                                   (int32_t)head.numbers[ERROR_CODE], text,
                                   number_or_absent(&head, CURRENT_OFFSET), max_offset,
                                   (int32_t)number_or_absent(&head, WAIT_MS),
                                   number_or_absent(&head, DATA_LAG),
                                   PyBool_FromLong(head.numbers[REQUIRE_SLOW] != 0), count);
        else
            Py_DECREF(text);
    } else if (!PyErr_Occurred())
        answer = Py_NewRef(Py_None);
    PyBuffer_Release(&body);
    return answer;
}

/* What is known of a message; positions count from the beginning of the body. */
typedef struct {
    int64_t *message_id;
    int64_t *attribute_start;
    int64_t *value_start;
    int64_t *value_end;
    uint8_t *damaged;
} Columns;

/* Read the attributes' length, which a payload with the flag begins with. */
static bool pass_attributes(const uint8_t *payload, const uint8_t *end, const uint8_t **attributes,
                            const uint8_t **value) {
    if (end - payload < ATTRIBUTE_LENGTH_BYTES)
        return false;
    int32_t length = (int32_t)((uint32_t)payload[0] << 24 | (uint32_t)payload[1] << 16 |
                               (uint32_t)payload[2] << 8 | (uint32_t)payload[3]);
    *attributes = *value = payload + ATTRIBUTE_LENGTH_BYTES;
    if (length > end - *attributes)
        return false;
    if (length > 0)
        *value += length;
    return true;
}

/* Read one message of the usual layout: four fields in this order, without anything between or behind them. */
static bool read_message(Cursor cursor, const uint8_t *origin, const Columns *columns, Py_ssize_t row) {
    uint64_t message_id, checksum, flag;
    const uint8_t *payload, *end;
    if (!read_field(&cursor, TAG_MESSAGE_ID, &message_id) || !read_field(&cursor, TAG_CHECKSUM, &checksum))
        return false;
    if (cursor.at >= cursor.end || *cursor.at++ != TAG_PAYLOAD || !read_piece(&cursor, &payload, &end))
        return false;
    if (!read_field(&cursor, TAG_FLAG, &flag) || cursor.at != cursor.end)
        return false;
    const uint8_t *attributes = payload, *value = payload;
    bool sound = (crc32_of(payload, (size_t)(end - payload)) & 0x7FFFFFFF) == (uint32_t)checksum;
    if (flag & FLAG_ATTRIBUTES)
        sound = pass_attributes(payload, end, &attributes, &value) && sound;
    columns->message_id[row] = (int64_t)message_id;
    columns->attribute_start[row] = attributes - origin;
    columns->value_start[row] = value - origin;
    columns->value_end[row] = end - origin;
    columns->damaged[row] = !sound;
    return true;
}

static bool read_messages(const Py_buffer *body, const Columns *columns, Py_ssize_t count) {
    const uint8_t *origin = body->buf;
    Cursor cursor = {origin, origin + body->len};
    Cursor message;
    Head head = {.present = 0};
    Py_ssize_t row = 0;
    while (cursor.at < cursor.end) {
        if (*cursor.at != TAG_MESSAGE) {
            if (!read_head_field(&cursor, &head))
                return false;
        } else if (row == count || !next_message(&cursor, &message) ||
                   !read_message(message, origin, columns, row++))
            return false;
    }
    return row == count;
}

PyDoc_STRVAR(scan_fetch_doc,
             "scan_fetch(body, count, /)\n--\n\n"
             "Return four columns of ``count`` int64 one behind the other: message ids, and where attributes and\n"
             "values start and values end in the body; and a byte for each message, 1 where it is damaged.");

static PyObject *scan_fetch(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer body;
    Py_ssize_t count;
    PyObject *numbers = NULL, *damaged = NULL, *answer = NULL;
    bool usual = false;
    if (!PyArg_ParseTuple(arguments, "y*n:scan_fetch", &body, &count))
        return NULL;
    if (count < 0 || count > body.len / LEAST_MESSAGE_BYTES) {
        PyErr_Format(PyExc_ValueError, "%zd messages in %zd bytes", count, body.len);
        goto end;
    }
    numbers = PyBytes_FromStringAndSize(NULL, count * 4 * (Py_ssize_t)sizeof(int64_t));
    damaged = PyBytes_FromStringAndSize(NULL, count);
    if (numbers == NULL || damaged == NULL)
        goto end;
    int64_t *column = (int64_t *)(void *)PyBytes_AsString(numbers);
    Columns columns = {column, column + count, column + 2 * count, column + 3 * count,
                       (uint8_t *)PyBytes_AsString(damaged)};
    Py_BEGIN_ALLOW_THREADS
    usual = read_messages(&body, &columns, count);
    Py_END_ALLOW_THREADS
    answer = usual ? PyTuple_Pack(2, numbers, damaged) : Py_NewRef(Py_None);
end:
    Py_XDECREF(numbers);
    Py_XDECREF(damaged);
    PyBuffer_Release(&body);
    return answer;
}

/* ---- numbers in buffers that may begin anywhere */

static Py_ssize_t count_of(const Py_buffer *numbers) { return numbers->len / (Py_ssize_t)sizeof(int64_t); }

static int64_t number_at(const Py_buffer *numbers, Py_ssize_t row) {
    int64_t number;
    memcpy(&number, (const uint8_t *)numbers->buf + row * (Py_ssize_t)sizeof number, sizeof number);
    return number;
}

/* ---- pieces of buffers, put together */

typedef struct {
    Py_buffer data;
    Py_buffer starts;
    Py_buffer ends;
} Pieces;

typedef struct {
    const uint8_t *at;
    int64_t size;
} Piece;

/* Read where a piece lies, once, as another thread may change it; false when that is outside its data. */
static bool piece_at(const Pieces *pieces, Py_ssize_t row, Piece *piece) {
    int64_t start = number_at(&pieces->starts, row), end = number_at(&pieces->ends, row);
    if (start < 0 || start > end || end > pieces->data.len)
        return false;
    *piece = (Piece){(const uint8_t *)pieces->data.buf + start, end - start};
    return true;
}

/* Check every position; return the bytes of all pieces together, or -1. */
static int64_t measure_pieces(const Pieces *pieces) {
    int64_t total = 0;
    Piece piece;
    if (pieces->starts.len != pieces->ends.len || pieces->starts.len % (Py_ssize_t)sizeof(int64_t))
        return -1;
    for (Py_ssize_t row = 0; row < count_of(&pieces->starts); row++) {
        if (!piece_at(pieces, row, &piece))
            return -1;
        total += piece.size;
        if (total > LENGTH_LIMIT)
            return -1;
    }
    return total;
}

/* Copy the pieces that were measured to an end, and note where each one ends; false when they have become
 * others since. */
static bool copy_pieces(const Pieces *pieces, uint8_t *target, int64_t end, int64_t total, uint8_t *borders) {
    const int64_t last = end + total;
    Piece piece;
    for (Py_ssize_t row = 0; row < count_of(&pieces->starts); row++) {
        if (!piece_at(pieces, row, &piece) || piece.size > last - end)
            return false;
        memcpy(target + end, piece.at, (size_t)piece.size);
        end += piece.size;
        int32_t border = (int32_t)end;
        memcpy(borders + row * (Py_ssize_t)sizeof border, &border, sizeof border);
    }
    return end == last;
}

PyDoc_STRVAR(append_doc,
             "append(target, size, borders, data, starts, ends, /)\n--\n\n"
             "Put the pieces ``data[start:end]`` behind the first ``size`` bytes of a target.\n\n"
             "Starts and ends are int64; ``borders`` takes where each piece ends in the target, as int32. Return\n"
             "where the last one ends; nothing was copied when that lies behind the end of the target.\n\n"
             "Raises ValueError for positions outside the data, also when they change, for too few borders, and\n"
             "for 2 GiB and more.");

static PyObject *append(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer target, borders;
    Pieces pieces;
    Py_ssize_t size;
    PyObject *answer = NULL;
    if (!PyArg_ParseTuple(arguments, "w*nw*y*y*y*:append", &target, &size, &borders, &pieces.data, &pieces.starts,
                          &pieces.ends))
        return NULL;
    int64_t total = measure_pieces(&pieces);
    if (total < 0 || size < 0 || size > target.len || total + size > LENGTH_LIMIT ||
        borders.len / (Py_ssize_t)sizeof(int32_t) < count_of(&pieces.starts)) {
        PyErr_SetString(PyExc_ValueError, "a piece lies outside its data, or there is no room for its border");
        goto end;
    }
    bool copied = true;
    if (total <= target.len - size) {
        Py_BEGIN_ALLOW_THREADS
        copied = copy_pieces(&pieces, target.buf, size, total, borders.buf);
        Py_END_ALLOW_THREADS
    }
    if (copied)
        answer = PyLong_FromLongLong(size + total);
    else
        PyErr_SetString(PyExc_ValueError, "the pieces changed while they were copied");
end:
    PyBuffer_Release(&target);
    PyBuffer_Release(&borders);
    PyBuffer_Release(&pieces.data);
    PyBuffer_Release(&pieces.starts);
    PyBuffer_Release(&pieces.ends);
    return answer;
}

PyDoc_STRVAR(gather_doc,
             "gather(data, starts, ends, /)\n--\n\n"
             "Return where the pieces ``data[start:end]`` begin and the last one ends when they are put one behind\n"
             "the other, as int32, and all of them.\n\n"
             "Starts and ends are int64. Raises ValueError as ``append``.");

static PyObject *gather(PyObject *self, PyObject *arguments) {
    (void)self;
    Pieces pieces;
    PyObject *borders = NULL, *target = NULL, *answer = NULL;
    if (!PyArg_ParseTuple(arguments, "y*y*y*:gather", &pieces.data, &pieces.starts, &pieces.ends))
        return NULL;
    int64_t total = measure_pieces(&pieces);
    if (total < 0) {
        PyErr_SetString(PyExc_ValueError, "a piece lies outside its data, or they are too long together");
        goto end;
    }
    borders = PyBytes_FromStringAndSize(NULL, (count_of(&pieces.starts) + 1) * (Py_ssize_t)sizeof(int32_t));
    target = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total);
    if (borders == NULL || target == NULL)
        goto end;
    uint8_t *border = (uint8_t *)PyBytes_AsString(borders), *bytes = (uint8_t *)PyBytes_AsString(target);
    memset(border, 0, sizeof(int32_t));
    bool copied;
    Py_BEGIN_ALLOW_THREADS
    copied = copy_pieces(&pieces, bytes, 0, total, border + sizeof(int32_t));
    Py_END_ALLOW_THREADS
    if (copied)
        answer = PyTuple_Pack(2, borders, target);
    else
        PyErr_SetString(PyExc_ValueError, "the pieces changed while they were copied");
end:
    Py_XDECREF(borders);
    Py_XDECREF(target);
    PyBuffer_Release(&pieces.data);
    PyBuffer_Release(&pieces.starts);
    PyBuffer_Release(&pieces.ends);
    return answer;
}

static PyObject *numbers_of(const Py_ssize_t *numbers, Py_ssize_t count) {
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list != NULL && i < count; i++) {
        PyObject *number = PyLong_FromSsize_t(numbers[i]);
        if (number == NULL || PyList_SetItem(list, i, number) < 0)
            Py_CLEAR(list);
    }
    return list;
}

enum { TOO_MANY_RUNS = -1, OUTSIDE = -2 };

/* Note the rows whose text differs from the one before, and return how many there are, or one of the above. */
static Py_ssize_t find_runs(const Py_buffer *texts, const Py_buffer *borders, Py_ssize_t *rows, Py_ssize_t most) {
    const uint8_t *last = NULL;
    Py_ssize_t count = borders->len / (Py_ssize_t)sizeof(int32_t) - 1, found = 0;
    int32_t start, end, last_size = 0;
    for (Py_ssize_t row = 0; row < count; row++) {
        const uint8_t *border = (const uint8_t *)borders->buf + row * (Py_ssize_t)sizeof start;
        memcpy(&start, border, sizeof start);
        memcpy(&end, border + sizeof start, sizeof end);
        if (start < 0 || start > end || end > texts->len)
            return OUTSIDE;
        const uint8_t *text = (const uint8_t *)texts->buf + start;
        if (last == NULL || end - start != last_size || memcmp(text, last, (size_t)last_size) != 0) {
            if (found == most)
                return TOO_MANY_RUNS;
            rows[found++] = row;
        }
        last = text;
        last_size = end - start;
    }
    return found;
}

PyDoc_STRVAR(runs_doc,
             "runs(texts, borders, most, /)\n--\n\n"
             "Return the rows whose text differs from the one before, the first row among them.\n\n"
             "The texts lie one behind the other; ``borders`` says as int32 where each begins and the last one\n"
             "ends. Return None when there are more such rows than ``most``.\n\n"
             "Raises ValueError for borders outside the texts.");

static PyObject *runs(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer texts, borders;
    Py_ssize_t most;
    PyObject *answer = NULL;
    if (!PyArg_ParseTuple(arguments, "y*y*n:runs", &texts, &borders, &most))
        return NULL;
    Py_ssize_t count = borders.len / (Py_ssize_t)sizeof(int32_t);
    most = most < 0 ? 0 : most < count ? most : count;
    Py_ssize_t *rows = PyMem_Calloc((size_t)most + 1, sizeof *rows);
    if (rows == NULL) {
        PyErr_NoMemory();
    } else {
        Py_ssize_t found = find_runs(&texts, &borders, rows, most);
        if (found == OUTSIDE)
            PyErr_SetString(PyExc_ValueError, "a text lies outside the data");
        else
            answer = found == TOO_MANY_RUNS ? Py_NewRef(Py_None) : numbers_of(rows, found);
    }
    PyMem_Free(rows);
    PyBuffer_Release(&texts);
    PyBuffer_Release(&borders);
    return answer;
}

/* ---- numbers and frames, written */

static void put_number(const Py_buffer *numbers, Py_ssize_t row, int64_t number) {
    memcpy((uint8_t *)numbers->buf + row * (Py_ssize_t)sizeof number, &number, sizeof number);
}

static uint8_t *put_big_endian(uint8_t *at, uint32_t number) {
    for (int shift = 24; shift >= 0; shift -= 8)
        *at++ = (uint8_t)(number >> shift);
    return at;
}

/* ---- checksums of bodies */

/* Add up the checksums of pieces of data; false when one does not lie in it. */
static bool sum_checksums(const Pieces *bodies, int64_t *sums) {
    Py_ssize_t count = count_of(&bodies->starts);
    uint64_t sum = 0;
    sums[0] = 0;
    for (Py_ssize_t row = 0; row < count; row++) {
        int64_t start = number_at(&bodies->starts, row), end = number_at(&bodies->ends, row);
        if (start < 0 || start > end || end > bodies->data.len)
            return false;
        sum += crc32_of((const uint8_t *)bodies->data.buf + start, (size_t)(end - start));
        sums[row + 1] = (int64_t)sum;
    }
    return true;
}

PyDoc_STRVAR(running_checksums_doc,
             "running_checksums(data, starts, ends, /)\n--\n\n"
             "Return the sums of the CRC-32 of no body, of the first, of the first two, and so on, as int64; None\n"
             "where a body does not lie in the data.");

static PyObject *running_checksums(PyObject *self, PyObject *arguments) {
    (void)self;
    Pieces bodies;
    PyObject *sums = NULL;
    bool found = false;
    if (!PyArg_ParseTuple(arguments, "y*y*y*:running_checksums", &bodies.data, &bodies.starts, &bodies.ends))
        return NULL;
    Py_ssize_t count = count_of(&bodies.starts);
    if (count_of(&bodies.ends) != count)
        goto end;
    sums = PyBytes_FromStringAndSize(NULL, (count + 1) * (Py_ssize_t)sizeof(int64_t));
    if (sums == NULL)
        goto end;
    int64_t *target = (int64_t *)(void *)PyBytes_AsString(sums);
    Py_BEGIN_ALLOW_THREADS
    found = sum_checksums(&bodies, target);
    Py_END_ALLOW_THREADS
    if (!found)
        Py_CLEAR(sums);
end:
    PyBuffer_Release(&bodies.data);
    PyBuffer_Release(&bodies.starts);
    PyBuffer_Release(&bodies.ends);
    return sums != NULL || PyErr_Occurred() ? sums : Py_NewRef(Py_None);
}

/* ---- sending messages (SendMessageRequestP2B) */

/* Byte strings one behind the other, and where each begins and the last one ends. */
typedef struct {
    Py_buffer data;
    Py_buffer borders;
} Texts;

typedef struct {
    const uint8_t *start;
    size_t size;
} Text;

/* The frames to be written, column by column. */
typedef struct {
    Texts values, prefixes, backs, places;
    Py_buffer codes;  /* which prefix and back belong to each value */
    Py_buffer rows;   /* which values are sent, and in which order */
    Py_buffer counts; /* how many of the rows go to each place */
    uint64_t timeout_ms;
    int64_t first_serial_no;
} Sends;

typedef struct {
    Text place, prefix, value, back;
    size_t data_size, request_size, call_size, stream_size;
} Send;

/* Which place comes next, and for how many rows. */
typedef struct {
    Py_ssize_t place;
    int64_t left;
} Turn;

static const uint8_t SEND_ENVELOPE[] = {
    2, 0x08, 0,          /* RpcConnHeader{flag=0} */
    4, 0x08, 3, 0x10, 3, /* RequestHeader{serviceType=BROKER_WRITE, protocolVer=3} */
};
enum { METHOD_TAG = 0x08, SEND_MESSAGE = 13, TAG_TIMEOUT = 0x10, TAG_REQUEST = 0x1A, TAG_DATA = 0x22 };

/* Take one of the byte strings, which no chunk is too short for. */
static bool text_at(const Texts *texts, int64_t row, Text *text) {
    if (row < 0 || row >= count_of(&texts->borders) - 1)
        return false;
    int64_t start = number_at(&texts->borders, (Py_ssize_t)row);
    int64_t end = number_at(&texts->borders, (Py_ssize_t)row + 1);
    if (start < 0 || start > end || end > texts->data.len || end - start > CHUNK_LIMIT)
        return false;
    text->start = (const uint8_t *)texts->data.buf + start;
    text->size = (size_t)(end - start);
    return true;
}

static size_t varint_size(uint64_t number) {
    size_t size = 1;
    for (; number >= 0x80; number >>= 7)
        size++;
    return size;
}

static uint8_t *put_varint(uint8_t *at, uint64_t number) {
    for (; number >= 0x80; number >>= 7)
        *at++ = (uint8_t)(number | 0x80);
    *at++ = (uint8_t)number;
    return at;
}

static uint8_t *put_text(uint8_t *at, Text text) {
    if (text.size)
        memcpy(at, text.start, text.size);
    return at + text.size;
}

/* Find what the next row's frame is made of; false when it does not fit into one chunk. */
static bool next_send(const Sends *sends, Py_ssize_t at, Turn *turn, Send *send) {
    while (turn->left == 0) {
        if (++turn->place >= count_of(&sends->counts))
            return false;
        turn->left = number_at(&sends->counts, turn->place);
    }
    if (turn->left < 0)
        return false;
    turn->left--;
    int64_t row = number_at(&sends->rows, at);
    if (row < 0 || row >= count_of(&sends->codes))
        return false;
    int64_t code = number_at(&sends->codes, (Py_ssize_t)row);
    if (!text_at(&sends->places, turn->place, &send->place) || !text_at(&sends->values, row, &send->value) ||
        !text_at(&sends->prefixes, code, &send->prefix) || !text_at(&sends->backs, code, &send->back))
        return false;
    send->data_size = send->prefix.size + send->value.size;
    send->request_size = send->place.size + 1 + varint_size(send->data_size) + send->data_size + send->back.size;
    send->call_size = 3 + varint_size(sends->timeout_ms) + 1 + varint_size(send->request_size) + send->request_size;
    send->stream_size = sizeof SEND_ENVELOPE + varint_size(send->call_size) + send->call_size;
    return send->stream_size <= CHUNK_LIMIT;
}

/* Return how long all frames are together, or -1. */
static int64_t measure_sends(const Sends *sends) {
    Py_ssize_t count = count_of(&sends->rows);
    int64_t total = 0;
    Turn turn = {-1, 0};
    Send send;
    if (sends->first_serial_no < INT32_MIN || sends->first_serial_no > (int64_t)INT32_MAX - count + 1)
        return -1;
    for (Py_ssize_t row = 0; row < count; row++) {
        if (!next_send(sends, row, &turn, &send))
            return -1;
        total += FRAME_HEAD_BYTES + (int64_t)send.stream_size;
        if (total > LENGTH_LIMIT)
            return -1;
    }
    return turn.left == 0 && turn.place >= count_of(&sends->counts) - 1 ? total : -1;
}

/* Write the frames that were measured; false when they have become others since. */
static bool write_sends(const Sends *sends, uint8_t *at, const uint8_t *end) {
    Py_ssize_t count = count_of(&sends->rows);
    Turn turn = {-1, 0};
    Send send;
    for (Py_ssize_t row = 0; row < count; row++) {
        if (!next_send(sends, row, &turn, &send) ||
            (size_t)(end - at) < FRAME_HEAD_BYTES + send.stream_size)
            return false;
        at = put_big_endian(at, FRAME_TOKEN);
        at = put_big_endian(at, (uint32_t)(sends->first_serial_no + row));
        at = put_big_endian(at, 1);
        at = put_big_endian(at, (uint32_t)send.stream_size);
        memcpy(at, SEND_ENVELOPE, sizeof SEND_ENVELOPE);
        at = put_varint(at + sizeof SEND_ENVELOPE, send.call_size);
        *at++ = METHOD_TAG;
        *at++ = SEND_MESSAGE;
        *at++ = TAG_TIMEOUT;
        at = put_varint(at, sends->timeout_ms);
        *at++ = TAG_REQUEST;
        at = put_text(put_varint(at, send.request_size), send.place);
        *at++ = TAG_DATA;
        at = put_text(put_varint(at, send.data_size), send.prefix);
        at = put_text(put_text(at, send.value), send.back);
    }
    return at == end;
}

PyDoc_STRVAR(encode_sends_doc,
             "encode_sends(values, value_borders, prefixes, prefix_borders, backs, back_borders, codes, rows,\n"
             "             places, place_borders, counts, timeout_ms, first_serial_no, /)\n--\n\n"
             "Return the frames that send some values, or None where one takes more than a chunk.\n\n"
             "Borders, codes, rows and counts are int64; ``counts`` says how many rows go to each place.");

static PyObject *encode_sends(PyObject *self, PyObject *arguments) {
    (void)self;
    Sends sends;
    long long timeout_ms, first_serial_no;
    PyObject *wire = NULL;
    if (!PyArg_ParseTuple(arguments, "y*y*y*y*y*y*y*y*y*y*y*LL:encode_sends", &sends.values.data,
                          &sends.values.borders, &sends.prefixes.data, &sends.prefixes.borders, &sends.backs.data,
                          &sends.backs.borders, &sends.codes, &sends.rows, &sends.places.data,
                          &sends.places.borders, &sends.counts, &timeout_ms, &first_serial_no))
        return NULL;
    sends.timeout_ms = (uint64_t)timeout_ms;
    sends.first_serial_no = first_serial_no;
    int64_t total = timeout_ms > 0 ? measure_sends(&sends) : -1;
    if (total < 0)
        goto end;
    wire = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total);
    if (wire == NULL)
        goto end;
    uint8_t *target = (uint8_t *)PyBytes_AsString(wire);
    bool written;
    Py_BEGIN_ALLOW_THREADS
    written = write_sends(&sends, target, target + total);
    Py_END_ALLOW_THREADS
    if (!written)
        Py_CLEAR(wire);
end:
    PyBuffer_Release(&sends.values.data);
    PyBuffer_Release(&sends.values.borders);
    PyBuffer_Release(&sends.prefixes.data);
    PyBuffer_Release(&sends.prefixes.borders);
    PyBuffer_Release(&sends.backs.data);
    PyBuffer_Release(&sends.backs.borders);
    PyBuffer_Release(&sends.codes);
    PyBuffer_Release(&sends.rows);
    PyBuffer_Release(&sends.places.data);
    PyBuffer_Release(&sends.places.borders);
    PyBuffer_Release(&sends.counts);
    return wire != NULL || PyErr_Occurred() ? wire : Py_NewRef(Py_None);
}

/* ---- answers to sends (SendMessageResponseB2P) */

enum {
    SHORTEST_ANSWER = 20, /* the chunk; its lengths are written as one byte up to the longest */
    LONGEST_ANSWER = 127,
    NOT_ASCII = 0x80,
    ANSWER_COLUMNS = 4,
};

typedef struct {
    uint64_t serial_no, offset, message_id, append_time;
} SendAnswer;

/* Compare what an answer of success begins with, up to its text. */
static bool pass_answer_head(Cursor *chunk) {
    const uint8_t size = (uint8_t)(chunk->end - chunk->at);
    const uint8_t head[] = {
        2, 0x08, 1,                                     /* RpcConnHeader{flag=1} */
        4, 0x08, 0, 0x18, 3,                            /* ResponseHeader{status=SUCCESS, protocolVer=3} */
        (uint8_t)(size - 9),                            /* RspResponseBody */
        METHOD_TAG, SEND_MESSAGE, 0x12, (uint8_t)(size - 13), /* its data: */
        0x08, 1, 0x10, 0xC8, 1, 0x1A,                   /* {success=true, errCode=200, errMsg= */
    };
    if (memcmp(chunk->at, head, sizeof head) != 0)
        return false;
    chunk->at += sizeof head;
    return true;
}

static bool pass_ascii(Cursor *chunk) {
    const uint8_t *start, *end;
    uint8_t bits = 0;
    if (!read_piece(chunk, &start, &end))
        return false;
    for (; start < end; start++)
        bits |= *start;
    return bits < NOT_ASCII;
}

/* Read the numbers behind the text, in any order; the last one of each counts. */
static bool read_numbers(Cursor *chunk, SendAnswer *answer) {
    uint64_t require_auth;
    while (chunk->at < chunk->end) {
        uint8_t tag = *chunk->at++;
        uint64_t *number = tag == 0x38   ? &answer->offset
                           : tag == 0x28 ? &answer->message_id
                           : tag == 0x30 ? &answer->append_time
                           : tag == 0x20 ? &require_auth
                                         : NULL;
        if (number == NULL || !read_varint(chunk, number))
            return false;
    }
    return answer->offset > 0 && answer->offset <= INT64_MAX && answer->offset % INDEX_ENTRY_BYTES == 0;
}

static bool next_answer(Cursor *cursor, SendAnswer *answer) {
    const uint8_t *at = cursor->at;
    if (cursor->end - at < FRAME_HEAD_BYTES + SHORTEST_ANSWER)
        return false;
    uint32_t size = load_big_endian(at + 12);
    if (load_big_endian(at) != FRAME_TOKEN || load_big_endian(at + 8) != 1 || size < SHORTEST_ANSWER ||
        size > LONGEST_ANSWER || size > cursor->end - at - FRAME_HEAD_BYTES)
        return false;
    Cursor chunk = {at + FRAME_HEAD_BYTES, at + FRAME_HEAD_BYTES + size};
    *answer = (SendAnswer){load_big_endian(at + 4), 0, 0, 0};
    cursor->at = chunk.end;
    return pass_answer_head(&chunk) && pass_ascii(&chunk) && read_numbers(&chunk, answer);
}

/* Read answers into columns of equal length until one is unusual; return how many. */
static Py_ssize_t read_answers(Cursor *cursor, const Py_buffer columns[ANSWER_COLUMNS]) {
    Py_ssize_t count = 0;
    SendAnswer answer;
    for (Cursor ahead = *cursor; count < count_of(columns); count++) {
        if (!next_answer(&ahead, &answer))
            break;
        put_number(&columns[0], count, (int32_t)answer.serial_no);
        put_number(&columns[1], count, (int64_t)answer.offset);
        put_number(&columns[2], count, (int64_t)answer.message_id);
        put_number(&columns[3], count, (int64_t)answer.append_time);
        *cursor = ahead;
    }
    return count;
}

PyDoc_STRVAR(read_send_answers_doc,
             "read_send_answers(data, position, serial_nos, offsets, message_ids, append_times, /)\n--\n\n"
             "Read answers to sends into four buffers of int64 of equal length, from a position on.\n\n"
             "Return the position behind those of the usual layout, and how many they are.\n\n"
             "Raises ValueError for a position outside the data and for buffers of several lengths.");

static PyObject *read_send_answers(PyObject *self, PyObject *arguments) {
    (void)self;
    Py_buffer data, columns[ANSWER_COLUMNS];
    Py_ssize_t position, count;
    PyObject *answer = NULL;
    if (!PyArg_ParseTuple(arguments, "y*nw*w*w*w*:read_send_answers", &data, &position, &columns[0], &columns[1],
                          &columns[2], &columns[3]))
        return NULL;
    bool fits = position >= 0 && position <= data.len;
    for (int i = 1; i < ANSWER_COLUMNS; i++)
        fits = fits && columns[i].len == columns[0].len;
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "a position outside the data, or buffers of several lengths");
        goto end;
    }
    const uint8_t *origin = data.buf;
    Cursor cursor = {origin + position, origin + data.len};
    Py_BEGIN_ALLOW_THREADS
    count = read_answers(&cursor, columns);
    Py_END_ALLOW_THREADS
    answer = Py_BuildValue("(nn)", (Py_ssize_t)(cursor.at - origin), count);
end:
    PyBuffer_Release(&data);
    for (int i = 0; i < ANSWER_COLUMNS; i++)
        PyBuffer_Release(&columns[i]);
    return answer;
}

/* ---- the module */

static PyMethodDef methods[] = {
    {"crc32", crc32, METH_VARARGS, crc32_doc},
    {"unwrap_answer", unwrap_answer, METH_O, unwrap_answer_doc},
    {"outline_fetch", outline_fetch, METH_O, outline_fetch_doc},
    {"scan_fetch", scan_fetch, METH_VARARGS, scan_fetch_doc},
    {"gather", gather, METH_VARARGS, gather_doc},
    {"append", append, METH_VARARGS, append_doc},
    {"runs", runs, METH_VARARGS, runs_doc},
    {"running_checksums", running_checksums, METH_VARARGS, running_checksums_doc},
    {"encode_sends", encode_sends, METH_VARARGS, encode_sends_doc},
    {"read_send_answers", read_send_answers, METH_VARARGS, read_send_answers_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_speedups", "Compiled twins of the loops that run for every message.", 0,
    methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__speedups(void) {
    prepare_checksums();
    return PyModuleDef_Init(&definition);
}
