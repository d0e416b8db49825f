/* A small coverage-guided fuzzer: inputs that reach new code are kept, and changed again.
 *
 *     guided SECONDS SEED CORPUS_DIRECTORY
 *
 * It runs for that long, and for LEAST_RUNS at least.
 * The compiler calls __sanitizer_cov_trace_pc in every block of the target (-fsanitize-coverage=trace-pc); two
 * blocks after each other are an edge. New inputs are added to the directory. What makes the target die is saved
 * there as "crash".
 */

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { EDGES = 1 << 12, LONGEST = 4096, MOST_INPUTS = 20000, MOST_CHANGES = 6, LEAST_RUNS = 1 << 14 };

void prepare_target(void);
void run_target(const uint8_t *data, size_t size);
void __sanitizer_cov_trace_pc(void);
void __sanitizer_set_death_callback(void (*callback)(void));

typedef struct {
    uint8_t *data;
    size_t size;
} Input;

static Input corpus[MOST_INPUTS];
static size_t inputs;
static uint8_t reached[EDGES], ever[EDGES];
static uintptr_t previous;
static const char *directory;
static uint8_t current[LONGEST];
static size_t current_size;
static uint64_t state;

void __sanitizer_cov_trace_pc(void) {
    uintptr_t here = (uintptr_t)__builtin_return_address(0) * 0x9E3779B97F4A7C15u >> 40;
    uint8_t *times = &reached[(previous ^ here) % EDGES];
    if (*times < 255)
        (*times)++;
    previous = here >> 1;
}

static uint32_t below(uint32_t limit) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32) % (limit ? limit : 1);
}

static void save(const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(current, 1, current_size, file) != current_size || fclose(file) != 0)
        _Exit(2);
}

static void save_crash(void) { save("crash"); }

static void keep(void) {
    if (inputs == MOST_INPUTS)
        return;
    Input *kept = &corpus[inputs++];
    kept->size = current_size;
    kept->data = malloc(current_size ? current_size : 1);
    if (kept->data == NULL)
        abort();
    memcpy(kept->data, current, current_size);
}

/* Count classes of how often an edge was passed, not every number. */
static uint8_t class_of(uint8_t times) {
    uint8_t bits = 0;
    for (; times; times >>= 1)
        bits++;
    return bits;
}

static int reaches_more(void) {
    int more = 0;
    memset(reached, 0, sizeof reached);
    previous = 0;
    run_target(current, current_size);
    for (size_t edge = 0; edge < EDGES; edge++)
        if (class_of(reached[edge]) > ever[edge]) {
            ever[edge] = class_of(reached[edge]);
            more = 1;
        }
    return more;
}

static void insert(size_t at, const uint8_t *data, size_t size) {
    if (current_size + size > LONGEST)
        return;
    memmove(current + at + size, current + at, current_size - at);
    memmove(current + at, data, size);
    current_size += size;
}

static void change(void) {
    static const uint8_t telling[] = {0x00, 0x01, 0x08, 0x10, 0x1A, 0x20, 0x22, 0x7F, 0x80, 0xFF};
    size_t at = below((uint32_t)current_size), rest = current_size - at;
    uint8_t piece[64];
    switch (below(7)) {
    case 0:
        if (rest)
            current[at] ^= (uint8_t)(1u << below(8));
        break;
    case 1:
        if (rest)
            current[at] = telling[below(sizeof telling)];
        break;
    case 2:
        if (rest)
            current[at] = (uint8_t)(current[at] + below(35) - 17);
        break;
    case 3: {
        size_t size = below(rest < 32 ? (uint32_t)rest : 32);
        memmove(current + at, current + at + size, rest - size);
        current_size -= size;
        break;
    }
    case 4: {
        size_t size = below(rest < sizeof piece ? (uint32_t)rest : sizeof piece);
        memcpy(piece, current + at, size);
        insert(below((uint32_t)current_size), piece, size);
        break;
    }
    case 5:
        for (size_t byte = 0; byte < 8; byte++)
            piece[byte] = (uint8_t)below(256);
        insert(at, piece, 1 + below(8));
        break;
    default: {
        const Input *other = &corpus[below((uint32_t)inputs)];
        size_t from = below((uint32_t)other->size), size = other->size - from;
        insert(at, other->data + from, size < 64 ? size : below((uint32_t)size));
    }
    }
}

static void read_seeds(void) {
    DIR *listing = opendir(directory);
    if (listing == NULL)
        _Exit(2);
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "rb");
        if (file == NULL)
            continue;
        current_size = fread(current, 1, LONGEST, file);
        fclose(file);
        reaches_more();
        keep();
    }
    closedir(listing);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int count, char **arguments) {
    if (count != 4)
        return 2;
    double end = seconds() + atoi(arguments[1]);
    state = strtoull(arguments[2], NULL, 10) * 2 + 1;
    directory = arguments[3];
    __sanitizer_set_death_callback(save_crash);
    prepare_target();
    read_seeds();
    if (inputs == 0)
        return 2;
    unsigned long runs = 0;
    for (; runs < LEAST_RUNS || runs % 1024 || seconds() < end; runs++) {
        const Input *chosen = &corpus[below((uint32_t)inputs)];
        current_size = chosen->size;
        memcpy(current, chosen->data, chosen->size);
        for (uint32_t changes = 1 + below(MOST_CHANGES); changes; changes--)
            change();
        if (reaches_more()) {
            char name[32];
            snprintf(name, sizeof name, "found-%zu", inputs);
            keep();
            save(name);
        }
    }
    size_t edges = 0;
    for (size_t edge = 0; edge < EDGES; edge++)
        edges += ever[edge] > 0;
    printf("%lu runs, %zu inputs, %zu edges\n", runs, inputs, edges);
    return 0;
}
