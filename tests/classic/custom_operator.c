/* Registers the operator Double of the domain "test.doubles", which doubles a float tensor, without onnxruntime's headers.

   The functions of OrtApi keep their positions from version to version; a library names them by position. */

#include <stddef.h>
#include <stdint.h>

typedef struct { const void *const *(*get_api)(uint32_t version); const char *(*version)(void); } ApiBase;
typedef const void *const *Api;

enum { MUTABLE_DATA = 51, ELEMENTS = 64, TYPE_AND_SHAPE = 65, DIMENSIONS_COUNT = 61, DIMENSIONS = 62, NEW_DOMAIN = 26,
       ADD_OPERATOR = 27, ADD_DOMAIN = 28, INPUT = 90, OUTPUT = 91, RELEASE_SHAPE = 99, FLOAT = 1 };

typedef void *(*Call2)(const void *, void *);
typedef void *(*Call3)(const void *, size_t, void *);
typedef void *(*OutputCall)(const void *, size_t, const int64_t *, size_t, void *);
typedef void *(*DimensionsCall)(const void *, int64_t *, size_t);
typedef void (*Release)(void *);

static Api api;

static void *create(const void *op, const void *functions, const void *info) { return (void *)1; }
static const char *name(const void *op) { return "Double"; }
static const char *provider(const void *op) { return NULL; }
static int type(const void *op, size_t index) { return FLOAT; }
static size_t count(const void *op) { return 1; }
static void destroy(void *kernel) { }

static void compute(void *kernel, void *context) {
    const void *input; void *output, *shape; float *from, *to; size_t rank, size; int64_t dims[8];
    ((Call3)api[INPUT])(context, 0, &input);
    ((Call2)api[TYPE_AND_SHAPE])(input, &shape);
    ((Call2)api[DIMENSIONS_COUNT])(shape, &rank);
    ((DimensionsCall)api[DIMENSIONS])(shape, dims, rank);
    ((Call2)api[ELEMENTS])(shape, &size);
    ((Release)api[RELEASE_SHAPE])(shape);
    ((OutputCall)api[OUTPUT])(context, 0, dims, rank, &output);
    ((Call2)api[MUTABLE_DATA])(input, &from);
    ((Call2)api[MUTABLE_DATA])(output, &to);
    for (size_t i = 0; i < size; i++) to[i] = 2 * from[i];
}

static int required(const void *op, size_t index) { return 0; }

static struct {
    uint32_t version;
    void *(*create)(const void *, const void *, const void *);
    const char *(*name)(const void *);
    const char *(*provider)(const void *);
    int (*input_type)(const void *, size_t);
    size_t (*input_count)(const void *);
    int (*output_type)(const void *, size_t);
    size_t (*output_count)(const void *);
    void (*compute)(void *, void *);
    void (*destroy)(void *);
    int (*input_characteristic)(const void *, size_t);
    int (*output_characteristic)(const void *, size_t);
} operator = { 8, create, name, provider, type, count, type, count, compute, destroy, required, required };

void *RegisterCustomOps(void *options, const ApiBase *base) {
    void *domain;
    api = base->get_api(8);
    void *failed = ((Call2)api[NEW_DOMAIN])("test.doubles", &domain);
    if (!failed) failed = ((Call2)api[ADD_OPERATOR])(domain, &operator);
    return failed ? failed : ((Call2)api[ADD_DOMAIN])(options, domain);
}
