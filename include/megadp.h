/* SPDX-License-Identifier: Apache-2.0
 *
 * megadp: data-parallel training for every language. The one header to include; C99 to C++20.
 *
 * Conventions, said once; docs/conventions.md says more of streams, threads and forked processes
 *   status    < 0 failed, 0 done, > 0 not yet. mdp_last_error(), on the same thread, has the sentence. PEER, TIMEOUT, ABORTED, DESYNC in a
 *             collective and BACKEND lose the communicator: every call that communicates or moves a step on then fails with it. What only
 *             looks at local memory goes on working. docs/errors.md lists causes and remedies.
 *   errors    Every call can fail with INVALID (an argument), STATE (a handle in a forked child), and as a lost communicator. Below, only
 *             what is special is listed.
 *   structs   `struct_size` is sizeof the struct as the caller compiled it, in and out; in an array the first one is the stride. Structs
 *             grow at the end only. Reserved fields are 0.
 *   zero      is the default of every field. If a caller may mean zero itself, a SET flag says so.
 *   enums     have written values. An unknown value or flag is refused.
 *   handles   belong to the caller. A child keeps its parents alive, so they may be destroyed in any order. Outputs are written on success
 *             only. A destroy or free accepts NULL, is local, and does nothing in a forked child.
 *   local, collective   A collective call is made by every rank of the communicator, in the same order, and waits for them at most for
 *             the communicator's timeout. All others are local and never wait for another rank.
 *   requests  If `mdp_request** out` is NULL, a call returns when its work is done. Otherwise it returns at once, and the request reports
 *             the end.
 *   streams   NULL on the host. With CUDA a cudaStream_t of the rank's device: a call's work comes after what the caller has put there,
 *             and "when its work is done" means submitted, with the caller's later work on that stream ordered after it.
 *   tensors   Shapes and strides count elements; strides may be negative. A tensor that is passed in is borrowed for the call, and the
 *             data of an input is only read.
 *   threads   One at a time per communicator, grid, buffer (with optimizers), else STATE. Any thread: mdp_grad_put, _acquire, _release,
 *             _ready and _skip, mdp_param_wait, mdp_request_*, mdp_comm_abort, mdp_comm_error_info, destroys and frees.
 *   since     0.1, for every function and type that does not say otherwise. */
#ifndef MEGADP_H
#define MEGADP_H

#include <stddef.h>
#include <stdint.h>

/* Of this header; mdp_version() tells the loaded library's. */
#define MDP_VERSION_MAJOR 0
#define MDP_VERSION_MINOR 1
#define MDP_VERSION_PATCH 0
#define MDP_VERSION (MDP_VERSION_MAJOR << 16 | MDP_VERSION_MINOR << 8 | MDP_VERSION_PATCH)

#if defined(SWIG) || !defined(__GNUC__)
#define MDP_API
#else
#define MDP_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ── Handles ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct mdp_comm mdp_comm;           /* this rank in one ordered group of ranks                    */
typedef struct mdp_grid mdp_grid;           /* the world cut into tp x cp x ep x dp x pp                   */
typedef struct mdp_buffer mdp_buffer;       /* parameters and gradients: laid out, bucketed, owned         */
typedef struct mdp_optimizer mdp_optimizer; /* this rank's shard of optimizer state                        */
typedef struct mdp_request mdp_request;     /* one pending operation                                       */
typedef void* mdp_stream;                   /* NULL on the host; a cudaStream_t with CUDA                  */
struct DLManagedTensorVersioned;            /* dlpack.h (1.0 or newer), only for who uses it               */

/* ── Enumerations ────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef int32_t mdp_status;
enum {
  MDP_OK = 0,
  MDP_PENDING = 1,        /* not finished yet                                                    */
  MDP_E_INVALID = -1,     /* an argument is wrong                                                */
  MDP_E_STATE = -2,       /* right arguments, wrong moment                                       */
  MDP_E_UNSUPPORTED = -3, /* not offered by this build, backend or machine                       */
  MDP_E_MEMORY = -4,      /* out of memory                                                       */
  MDP_E_SYSTEM = -5,      /* an operating-system call failed                                     */
  MDP_E_BACKEND = -6,     /* a device or transport library failed                                */
  MDP_E_PEER = -7,        /* another rank died or left                                           */
  MDP_E_TIMEOUT = -8,     /* another rank did not come in time                                   */
  MDP_E_DESYNC = -9,      /* ranks called different operations or registered different things    */
  MDP_E_ABORTED = -10,    /* mdp_comm_abort was called, or a call interrupted, or an update failed, here or elsewhere */
  MDP_E_NUMERIC = -11,    /* a value is not finite                                               */
  MDP_E_CORRUPT = -12,    /* stored or received bytes are damaged                                */
  MDP_E_INTERNAL = -13    /* a defect of the library                                             */
};

typedef uint32_t mdp_backend;
enum {
  MDP_BACKEND_AUTO = 0,
  MDP_BACKEND_HOST = 1,
  MDP_BACKEND_CUDA = 2
};

typedef uint32_t mdp_dtype;
enum {
  MDP_DTYPE_DEFAULT = 0, /* parameters: F32. Gradients: F32                              */
  MDP_DTYPE_SAME = 1,    /* gradients: the parameter's                                   */
  MDP_DTYPE_F32 = 2,
  MDP_DTYPE_BF16 = 3,
  MDP_DTYPE_F16 = 4,
  MDP_DTYPE_F64 = 5, /* collectives only                                                 */
  MDP_DTYPE_I64 = 6, /* collectives only                                                 */
  MDP_DTYPE_U8 = 7   /* collectives only                                                 */
};

typedef uint32_t mdp_op;
enum {
  MDP_OP_SUM = 0,
  MDP_OP_AVG = 1,
  MDP_OP_MAX = 2,
  MDP_OP_MIN = 3
};

enum {                     /* mdp_comm_config.flags */
  MDP_COMM_SET_DEVICE = 1, /* device is meant literally, also 0                                                          */
  MDP_COMM_EXACT_SUMS = 2, /* on CUDA: the host's order and precision of sums; slower, 32 MiB of scratch a group. Without it NCCL chooses */
  MDP_COMM_SOCKETS = 4,    /* between nodes authenticated sockets, not UCX, whose port lets strangers abort the rank; on all ranks     */
  MDP_COMM_THREADS_ALWAYS = 8 /* host threads help while the program computes, too */
};

enum { /* axes of a grid, to be combined by | ; on the dense grid unless MDP_AXIS_EXPERT_GRID is given */
  MDP_AXIS_TP = 1,
  MDP_AXIS_CP = 2,
  MDP_AXIS_EP = 4,
  MDP_AXIS_DP = 8,
  MDP_AXIS_PP = 16,
  MDP_AXIS_EXPERT_GRID = 256
};

typedef uint32_t mdp_param_class;
enum {
  MDP_PARAM_CLASS_DENSE = 0,
  MDP_PARAM_CLASS_EXPERT = 1
};

typedef uint32_t mdp_placement; /* of a parameter over the tensor-parallel ranks; must be said when tp > 1 or ep > 1 */
enum {
  MDP_PLACEMENT_UNSET = 0,
  MDP_PLACEMENT_REPLICATED = 1,  /* the same on all, gradients too: counted once in the norm */
  MDP_PLACEMENT_SHARDED = 2,     /* each holds a part: all count in the norm */
  MDP_PLACEMENT_PARTIAL_SUM = 3, /* replicated, but each has a part of the gradient: summed at mdp_grad_sync */
  MDP_PLACEMENT_PARTIAL_MEAN = 4 /* the same, averaged */
};

typedef uint32_t mdp_sharding;
enum {
  MDP_SHARDING_DEFAULT = 0, /* ZERO_1                                                                                      */
  MDP_SHARDING_ZERO_0 = 1,  /* nothing sharded: gradients are all-reduced, every rank keeps all optimizer state            */
  MDP_SHARDING_ZERO_1 = 2,  /* gradients are reduce-scattered, optimizer state is sharded, parameters are all-gathered     */
  MDP_SHARDING_ZERO_2 = 3,  /* gradients too, through a small pool; what is owned is summed in f32      */
  MDP_SHARDING_WHOLE = 4    /* as ZERO_1, but each parameter has one owner, for updates that need all of it */
};

typedef uint32_t mdp_scaling; /* what the sum of gradients is divided by */
enum {
  MDP_SCALING_MEAN = 0,  /* the size of dp x cp, for experts too  */
  MDP_SCALING_SUM = 1,   /* nothing                               */
  MDP_SCALING_TOKENS = 2 /* mdp_grad_tokens                        */
};

typedef uint32_t mdp_rule; /* what a step does; formulas: docs/optimizers.md */
enum {
  MDP_RULE_ADAMW = 0,
  MDP_RULE_ADAM = 1, /* weight_decay is L2, in the gradient */
  MDP_RULE_SGD = 2,  /* without state */
  MDP_RULE_SGD_MOMENTUM = 3,
  MDP_RULE_SGD_NESTEROV = 4,
  MDP_RULE_LION = 5,
  MDP_RULE_CALLER = 6 /* mdp_optimizer_set_update, or mdp_optimizer_step_begin */
};

typedef uint32_t mdp_norm;
enum {
  MDP_NORM_L2 = 0,
  MDP_NORM_INF = 1
};

typedef uint32_t mdp_missing; /* what mdp_grad_sync does about a parameter that the last microbatch neither brought nor skipped */
enum {
  MDP_MISSING_ERROR = 0, /* MDP_E_STATE on all ranks, naming the parameter and the rank      */
  MDP_MISSING_ZERO = 1,  /* this rank adds what its earlier microbatches brought, or zero    */
  MDP_MISSING_SKIP = 2   /* as mdp_grad_skip                                                 */
};

enum {                     /* mdp_param.flags */
  MDP_PARAM_FROZEN = 1,    /* not trained: only a name and an index, no memory                                          */
  MDP_PARAM_OWN_BUCKET = 2 /* gets a bucket to itself. Ignored with ZERO_0                            */
};
enum {                                   /* mdp_buffer_config.flags */
  MDP_BUFFER_NO_OVERLAP = 1,             /* launch everything at mdp_grad_sync, in one bucket an arena                   */
  MDP_BUFFER_HIGH_BANDWIDTH_PADDING = 2, /* pad bucket ends to a multiple of 65536 elements as well                      */
  MDP_BUFFER_REFERENCE_BUCKETS = 4,      /* bucket_elements as Megatron-LM: max(40,000,000, 1,000,000 x dp x cp)         */
  MDP_BUFFER_IGNORE_MEMORY = 8,          /* take it even if too little is left */
  MDP_BUFFER_ERROR_FEEDBACK = 16,        /* with wire_dtype: add to the next step's gradient what rounding lost */
  MDP_BUFFER_CHECK_FINITE = 32,          /* look for non-finite gradients before they are reduced */
  MDP_BUFFER_CHECK_LARGE = 64            /* warn of a gradient with 10 times the largest norm of its first 100    */
};
enum {              /* mdp_grad_put */
  MDP_GRAD_ADD = 1, /* add to what is in the slot, also if it is the step's first                                   */
  MDP_GRAD_MORE = 2 /* more of the same use is coming: do not count it as ready yet                                 */
};
enum {                                  /* mdp_param_group.flags */
  MDP_PARAM_GROUP_SET_LR = 1,           /* lr is meant literally, also 0 */
  MDP_PARAM_GROUP_SET_WEIGHT_DECAY = 2, /* weight_decay likewise */
  MDP_PARAM_GROUP_SET_BETA1 = 4,
  MDP_PARAM_GROUP_SET_BETA2 = 8,
  MDP_PARAM_GROUP_SET_MOMENTUM = 16
};
enum {                                 /* mdp_optimizer_config.flags */
  MDP_OPTIMIZER_SET_LR = 1,            /* lr is meant literally, also 0 */
  MDP_OPTIMIZER_SET_BETA1 = 2,         /* beta1 likewise */
  MDP_OPTIMIZER_SET_BETA2 = 4,         /* beta2 likewise */
  MDP_OPTIMIZER_SET_MOMENTUM = 8,      /* momentum likewise */
  MDP_OPTIMIZER_SOME_GROUPS = 16,      /* parameters of other groups are other optimizers': mdp_optimizer_step_many */
  MDP_OPTIMIZER_NO_MASTER = 32,        /* bf16 parameters: rounded stochastically */
  MDP_OPTIMIZER_STOCHASTIC_STATE = 64, /* with state_dtype BF16 */
  MDP_OPTIMIZER_CHECK_UPDATE = 128     /* CALLER, to debug: copies of a piece's halves must come to the same */
};
enum {                    /* mdp_scaler.flags */
  MDP_SCALER_CONSTANT = 1 /* the scale stays */
};
enum {                   /* mdp_step_config.flags */
  MDP_STEP_SET_LR = 1,   /* lr is meant literally, also 0 */
  MDP_STEP_UNCHECKED = 2 /* no norm or finite flag */
};
enum {                      /* mdp_step_report.flags */
  MDP_STEPPED_SKIPPED = 1,  /* a gradient was not finite: nothing was changed or counted                */
  MDP_STEPPED_CLIPPED = 2,  /* the gradient was scaled down to max_grad_norm                            */
  MDP_STEPPED_UNCHECKED = 4 /* grad_norm is NaN                                                        */
};

typedef uint32_t mdp_random; /* which ranks draw the same random numbers */
enum {
  MDP_RANDOM_UNSET = 0,
  MDP_RANDOM_REPLICATED = 1, /* all: of what is replicated over tensor-parallel ranks */
  MDP_RANDOM_TENSOR = 2,     /* tensor-parallel ranks draw different ones: of what is cut over them */
  MDP_RANDOM_EXPERT = 3      /* expert-parallel ranks too: inside experts */
};

enum {                            /* mdp_checkpoint_config.flags, to load */
  MDP_CHECKPOINT_PARAMS_ONLY = 1, /* not the optimizers' state: moments are zero, no step was taken */
  MDP_CHECKPOINT_LOAD_HYPER = 2   /* learning rates, groups and what else the optimizers were told, too */
};

typedef uint32_t mdp_bucket_state;
enum {
  MDP_BUCKET_FILLING = 0,   /* waiting for gradients                                    */
  MDP_BUCKET_READY = 1,     /* all gradients are there; waits for earlier buckets       */
  MDP_BUCKET_IN_FLIGHT = 2, /* being reduced                                            */
  MDP_BUCKET_REDUCED = 3,   /* reduced                                                  */
  MDP_BUCKET_GATHERING = 4, /* stepped; new parameters on their way                     */
  MDP_BUCKET_WHOLE = 5      /* parameters up to date on all ranks                       */
};

typedef int32_t mdp_log_level;
enum {
  MDP_LOG_ERROR = 0,
  MDP_LOG_WARNING = 1,
  MDP_LOG_INFO = 2,
  MDP_LOG_DEBUG = 3
};

/* ── Structs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct {
  uint8_t bytes[128];
} mdp_unique_id; /* opaque; holds a secret */

typedef struct { /* details of a failure; -1: not known, or none */
  uint32_t struct_size;
  mdp_status status;
  int32_t rank;       /* world rank at fault                                                       */
  int32_t bucket;     /* number of the bucket in launch order                                     */
  int64_t param;      /* index of the parameter at registration                                   */
  uint64_t operation; /* running number of the collective in its group, 0: none               */
  char text[1024];    /* UTF-8, NUL-terminated; cut if too long */
} mdp_error_info;

/* The functions of an mdp_bootstrap. start begins to gather `bytes` bytes (a few KiB) of each rank: those of rank r go to byte r * bytes of
 * `all`, on every rank. `mine` and `all` are the library's, until free returns. *request is the caller's own. 0: begun. test: 0: in
 * progress, 1: done; it must not block. Anything else: failed. free is called once for each start that returned 0, also to give up. */
typedef int32_t (*mdp_allgather_start_fn)(void* context, const void* mine, size_t bytes, void* all, void** request);
typedef int32_t (*mdp_allgather_test_fn)(void* context, void* request);
typedef void (*mdp_allgather_free_fn)(void* context, void* request);

/* A way to gather bytes over ranks that the caller has (MPI_Iallgather and MPI_Test, a key-value store, a pipe), in the place
 * of a launcher or id. Called inside mdp_comm_create alone, on its thread, at most twice; must not call megadp, throw or jump out. What it
 * carries holds a secret: whoever reads it may join. Borrowed for that call. */
typedef struct {
  uint32_t struct_size;
  uint32_t reserved; /* 0 */
  void* context;     /* handed to the functions; may be NULL */
  mdp_allgather_start_fn allgather_start;
  mdp_allgather_test_fn allgather_test;
  mdp_allgather_free_fn allgather_free;
} mdp_bootstrap;

/* Asked every 50 ms, on the calling thread, while a call on the communicator, or what is made from it, waits. Not 0 ends the call, ABORTED:
 * a collective one loses the communicator, a local one may be repeated, mdp_request_wait answers PENDING. Must not use the communicator,
 * throw or jump out. */
typedef int32_t (*mdp_interrupted_fn)(void* context);

typedef struct {
  uint32_t struct_size;
  mdp_backend backend;
  int32_t rank;         /* with an id or a bootstrap: this rank; from the environment: 0                                 */
  int32_t size;         /* with an id or a bootstrap: how many ranks; from the environment: 0, or what the launcher must say */
  int32_t device;       /* with CUDA: which of the devices this process sees; 0: by this rank's number on its node       */
  int32_t host_threads; /* that share long arrays, while the program waits; 0: a part of the processors. Results do not depend on it */
  uint64_t timeout_ns;  /* how long any collective waits for another rank; 0: five minutes                               */
  uint64_t flags;       /* MDP_COMM_*                                                                                    */
  const mdp_bootstrap* bootstrap; /* NULL: the ranks meet by the id, or by what the launcher says */
  mdp_interrupted_fn interrupted; /* NULL: nobody */
  void* interrupted_context;      /* handed to it */
} mdp_comm_config;

typedef struct {
  uint32_t struct_size;
  int32_t tp, cp, ep, pp; /* tensor, context, expert, pipeline parallel sizes; 0: 1. dp is what is left                    */
  int32_t expert_tp;      /* tensor parallel size of experts; 0: tp                                                      */
  int32_t instances;      /* optimizer instances: neighbours on dp x cp, each with all state; 0: 1 */
  int32_t reserved;
  const char* order; /* axes from fastest to slowest varying rank; NULL: "tp-cp-ep-dp-pp"                            */
  uint64_t flags;    /* 0                                                                                           */
} mdp_grid_config;

typedef struct { /* strided array. On output shape and strides belong to the object the view was taken from */
  uint32_t struct_size;
  mdp_dtype dtype;
  int32_t device_type; /* as in DLPack: 1 CPU (0 is taken as 1), 2 CUDA */
  int32_t device_id;
  int32_t ndim; /* at most 16 */
  uint32_t reserved;
  void* data;
  const int64_t* shape;
  const int64_t* strides; /* NULL: row-major and dense */
} mdp_tensor;

typedef struct {
  uint32_t struct_size;
  mdp_dtype dtype;       /* F32, BF16 or F16                                                                          */
  const char* name;      /* unique, UTF-8, at most 255 bytes                                                  */
  const int64_t* shape;  /* ndim sizes; a zero size is allowed                                                */
  int32_t ndim;          /* 0 to 16                                                                                   */
  int32_t uses_per_step; /* how many mdp_grad_put or mdp_grad_ready make it ready in a microbatch; 0: 1               */
  mdp_param_class param_class;
  mdp_placement placement;
  int32_t shard_dim;     /* with PLACEMENT_SHARDED: dimension cut over the tensor-parallel ranks                      */
  int32_t shard_stride;  /* with PLACEMENT_SHARDED: how many pieces per rank; 0: 1                                    */
  int32_t param_group;   /* index of a parameter group of the optimizer                                               */
  int32_t use_order;     /* parameters are used in ascending order of this, equal ones as registered */
  uint64_t flags;        /* MDP_PARAM_*                                                                                     */
  const char* tie;       /* NULL, or shared by its copies on pipeline stages, whose gradients are summed */
  mdp_sharding sharding; /* 0: the buffer's; WHOLE in ZERO_1 or ZERO_2, ZERO_1 in WHOLE */
  uint32_t reserved;
  double cost; /* with WHOLE: of its update, by which owners are balanced; 0: its elements */
} mdp_param;

typedef struct {
  uint32_t struct_size;
  mdp_dtype grad_dtype; /* F32 (default) or MDP_DTYPE_SAME                                                               */
  mdp_sharding sharding;
  mdp_missing missing;
  uint64_t bucket_elements; /* a bucket closes once it is at least this long; UINT64_MAX: one bucket an arena; 0: a tenth of the
                               arena, at least 8192, at most the reference's                                                 */
  uint64_t bucket_count;    /* instead of bucket_elements: as many buckets; not if ranks have different experts (DESYNC)       */
  uint64_t flags;           /* MDP_BUFFER_*                                                                                  */
  uint64_t pool_buckets;    /* with ZERO_2: slots of a pool; 0: 2                              */
  uint64_t spill_limit;     /* with ZERO_2: most bytes outside the pool; 0: no limit           */
  mdp_scaling scaling;
  mdp_dtype wire_dtype; /* of f32 gradients: F32 (default), or BF16: each rank's is rounded once, sums are f32 */
} mdp_buffer_config;

typedef struct { /* memory of one rank, in bytes, before rounding each allocation up to a page */
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t param_bytes;        /* whole parameters, with padding                                       */
  uint64_t grad_bytes;         /* whole gradients, with padding; with ZERO_2 the pool                  */
  uint64_t grad_shard_bytes;   /* with ZERO_2: sums of the owned pieces in f32; else 0: reduced in place */
  uint64_t master_bytes;       /* the owned pieces in fp32; 0 for f32 parameters, or NO_MASTER         */
  uint64_t state_bytes;        /* both moments of the owned pieces in fp32; half of that as bf16       */
  uint64_t scratch_bytes;      /* scalars, counts, agreement, f32 sums; 1 MiB + 4 KiB a group of ranks */
  uint64_t padding_elements;   /* alignment gaps and bucket padding, over all arenas                   */
  uint64_t buckets;            /* over all arenas                                                      */
  uint64_t owned_elements;     /* of parameters, without padding                                       */
  uint64_t communicator_bytes; /* with MDP_BACKEND_CUDA, besides: an estimate for NCCL's communicators, 147 MiB each */
  uint64_t spill_bytes;        /* with ZERO_2: most bytes of a microbatch outside the pool */
  uint64_t feedback_bytes;     /* with ERROR_FEEDBACK: what rounding lost, f32 */
  uint64_t average_bytes;      /* of averages, and what a swap keeps aside, besides */
} mdp_plan_report;

typedef struct { /* one owned piece of one parameter */
  uint32_t struct_size;
  uint32_t reserved;
  int64_t arena;       /* one per (parameter dtype, gradient dtype, class, sharding), in order of first registration */
  int64_t bucket;      /* number in launch order                                                               */
  int64_t param;       /* index at registration                                                                */
  int64_t begin, end;  /* elements within the arena                                                            */
  int64_t param_begin; /* element of the flattened parameter at `begin`                                        */
} mdp_range;

typedef struct { /* of the optimizer, not a group of ranks */
  uint32_t struct_size;
  uint32_t reserved;
  double lr;           /* 0: the optimizer's, unless MDP_PARAM_GROUP_SET_LR           */
  double weight_decay; /* 0: the optimizer's, unless MDP_PARAM_GROUP_SET_WEIGHT_DECAY */
  uint64_t flags;
  double beta1, beta2, momentum; /* likewise */
  double eps;                    /* 0: the optimizer's */
} mdp_param_group;

typedef struct { /* bytes that the owner of a parameter keeps for the caller's update of it; zero at first */
  uint32_t struct_size;
  uint32_t reserved;
  const char* name;      /* as in mdp_optimizer_config.state */
  const uint64_t* bytes; /* of each parameter; 0: none. With WHOLE or ZERO_0 */
} mdp_param_state;

typedef struct {
  uint32_t struct_size;
  mdp_rule rule;
  double lr;           /* 0: 1e-3, LION 1e-4, unless MDP_OPTIMIZER_SET_LR                                  */
  double beta1, beta2; /* 0: 0.9, 0.999 (LION 0.99), unless MDP_OPTIMIZER_SET_BETA1, _BETA2; ADAMW, ADAM, LION */
  double eps;          /* 0: 1e-8; otherwise 1e-37 to 1e37; ADAMW, ADAM                                    */
  double weight_decay;
  double max_grad_norm;                /* gradients are scaled down to this global norm; 0: off                            */
  const mdp_param_group* param_groups; /* NULL: one group, with the values above; copied                       */
  uint64_t param_group_count;
  uint64_t flags;
  double max_grad_value;               /* clips each element to +- this, last; 0: off */
  mdp_norm norm;                       /* of max_grad_norm and the report */
  uint32_t first_param_group;          /* of param_groups; the others follow. Not 0: with MDP_OPTIMIZER_SOME_GROUPS */
  double momentum;                     /* 0: 0.9, unless MDP_OPTIMIZER_SET_MOMENTUM; SGD_MOMENTUM, SGD_NESTEROV */
  const char* state;                   /* CALLER: names of its state arrays, f32, one a line, at most 4; NULL: none */
  const mdp_param_state* param_states; /* CALLER: NULL: none */
  uint64_t param_state_count;          /* at most 4 */
  double average_decay;                /* of a moving average of the parameters, such as 0.999; 0: none */
  mdp_dtype state_dtype;               /* of what the rule keeps: F32 (default) or BF16; not CALLER */
  uint32_t reserved;
  uint64_t seed; /* of stochastic rounding */
} mdp_optimizer_config;

typedef struct { /* what this rank owns of a parameter, for the caller's update of it; memory of the backend */
  uint32_t struct_size;
  uint32_t optimizer; /* its number in the list of mdp_optimizer_step_many */
  uint64_t param;
  uint64_t param_begin, count; /* elements of the flattened parameter */
  float* master;               /* to be updated                                    */
  const float* grad;           /* divided and clipped; until the next piece        */
  float* const* state;         /* as many as the configuration names; to be updated */
  uint64_t state_count;
  uint64_t step;                                        /* that the parameter takes part in, from 1 on */
  double lr, beta1, beta2, eps, weight_decay, momentum; /* of its group      */
  mdp_stream stream;                                    /* the step's, for the work of the update */
  void* const* param_states;                            /* as many as the configuration has; to be updated */
  const uint64_t* param_state_bytes;                    /* of each */
  uint64_t param_state_count;
} mdp_update;
/* 0: updated; otherwise the step fails on all ranks. No exception or longjmp may pass through it. */
typedef int32_t (*mdp_update_fn)(void* user, const mdp_update* update);

typedef struct { /* a loss scale that follows overflows on the device */
  uint32_t struct_size;
  uint32_t growth_interval; /* so many steps without overflow, and it grows; 0: 2000 */
  uint32_t hysteresis;      /* so many overflows without growth between, and each further one backs off; 0: 1 */
  uint32_t clean_steps;     /* since the last overflow or growth, below growth_interval */
  uint32_t overflows;       /* since the last growth, at most hysteresis */
  uint32_t reserved;
  double scale;          /* 0: 65536 */
  double growth_factor;  /* 0: 2; at least 1 */
  double backoff_factor; /* 0: 0.5; below 1 */
  double min_scale;      /* 0: 1; at most scale */
  uint64_t flags;
} mdp_scaler;

typedef struct {
  uint32_t struct_size;
  uint32_t reserved;
  double lr;         /* becomes the optimizer's, even if NUMERIC; 0: unchanged, unless MDP_STEP_SET_LR                    */
  double loss_scale; /* gradients are divided by it, 1e-37 to 1e37; 0: 1, and a non-finite gradient is an error      */
  mdp_stream stream;
  uint64_t flags;
  double grad_divisor; /* divides too, such as the number of microbatches; 0: 1 */
} mdp_step_config;

typedef struct {
  uint32_t struct_size;
  uint32_t reserved;
  double grad_norm;   /* of the whole gradient, divided, before clipping; summed in float64    */
  double clip_factor; /* 1: not clipped */
  double loss_scale;
  uint64_t step;  /* steps taken so far, skipped ones not counted                                            */
  uint64_t flags; /* MDP_STEPPED_*                                                                           */
} mdp_step_report;

typedef struct { /* of reduced gradients */
  uint32_t struct_size;
  uint32_t reserved;
  double norm;     /* L2                        */
  double inf_norm; /* largest magnitude but NaN */
  uint64_t zeros;
  uint64_t nonfinite; /* infinite or NaN                                 */
} mdp_grad_summary;

typedef struct { /* sums since registration; times in nanoseconds */
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t comm_ns;              /* of gradient and parameter collectives, added up */
  uint64_t exposed_ns;           /* that callers waited for them (sync, step, param_wait) */
  uint64_t bytes;                /* of buckets reduced and gathered */
  uint64_t buckets;              /* launched */
  uint64_t launched_in_backward; /* of these, before mdp_grad_sync */
  uint64_t syncs;                /* finished calls of mdp_grad_sync */
  uint64_t host_syncs;           /* waits of a caller's thread for the device */
  uint64_t spill_peak_bytes;     /* with ZERO_2: most bytes outside the pool at a time           */
  uint64_t large_gradients;      /* with CHECK_LARGE: warnings */
} mdp_stats_report;

typedef struct { /* CLOCK_MONOTONIC, nanoseconds; 0: has not happened */
  uint32_t struct_size;
  mdp_bucket_state state;
  uint64_t ready_ns;        /* its last gradient arrived                                                     */
  uint64_t reduce_begin_ns; /* taken as the work begins and ends                                             */
  uint64_t reduce_end_ns;
  uint64_t gather_begin_ns;
  uint64_t gather_end_ns;
  uint64_t sync_ns; /* mdp_grad_sync was called                                 */
} mdp_bucket_report;

typedef struct { /* a buffer in a checkpoint */
  uint32_t struct_size;
  uint32_t reserved;
  mdp_buffer* buffer;
  mdp_optimizer* optimizer; /* of the buffer; NULL: its state is neither saved nor loaded */
} mdp_checkpoint_part;

typedef struct { /* in a checkpoint an array of the caller's: frozen parameters, module buffers; the same on all replicas */
  uint32_t struct_size;
  mdp_placement placement; /* as of mdp_param, in the first part's grid */
  const char* name;
  const mdp_tensor* tensor; /* to load: written to */
  int32_t shard_dim;
  int32_t shard_stride;
} mdp_checkpoint_tensor;

typedef struct { /* on all ranks the same, but for memory and rank_data */
  uint32_t struct_size;
  uint32_t reserved;
  const char* directory; /* of checkpoints, shared by all hosts; to load also one of them, or a model (see mdp_checkpoint_load) */
  const mdp_checkpoint_part* parts;
  uint64_t part_count; /* at least 1; of the same ranks */
  const mdp_checkpoint_tensor* tensors;
  uint64_t tensor_count;
  const void* shared_data; /* to save: any bytes, rank 0's count */
  uint64_t shared_bytes;
  const void* rank_data; /* this rank's */
  uint64_t rank_bytes;
  uint64_t keep;        /* to save: how many stay; 0: all */
  const char* optional; /* to load: NULL, or patterns, one a line, of names that one side may lack */
  uint64_t flags;       /* MDP_CHECKPOINT_* */
} mdp_checkpoint_config;

/* `text` is NUL-terminated and borrowed for the call. */
typedef void (*mdp_log_fn)(void* user, mdp_log_level level, const char* text, size_t length);

/* ── Library. Local, any thread ──────────────────────────────────────────────────────────────────────────────────────────────── */

/* MDP_VERSION of the loaded library. */
MDP_API uint32_t mdp_version(void);

/* "MDP_E_PEER" and so on; "unknown status" for others. Static text. */
MDP_API const char* mdp_status_name(mdp_status status);

/* The sentence of this thread's last failed call, "" if none has failed. UTF-8, at most 4095 bytes; valid until this thread's next megadp
 * call. */
MDP_API const char* mdp_last_error(void);

/* The same failure in parts. status is MDP_OK if no call of this thread has failed. */
MDP_API mdp_status mdp_last_error_info(mdp_error_info* out);

/* What this library is and what it sees, as one line of JSON: version, build, backends, transport, machine, and launch (what
 * mdp_comm_create would make of the environment).
 * All calls that answer with text: *needed becomes its size with the terminating NUL, also if capacity is too small (INVALID; nothing is
 * written). json NULL with capacity 0 asks for the size. needed may be NULL if json is not. */
MDP_API mdp_status mdp_info(char* json, size_t capacity, size_t* needed);

/* Sets the callback for log messages; NULL (the default): errors and warnings go to stderr, the rest is dropped. Messages come one at a
 * time, at the end of any thread's ordinary call. When this returns, the callback before is not running and will not be called again. It
 * may call megadp; it must not throw or jump out. */
MDP_API mdp_status mdp_log_set(mdp_log_fn fn, void* user);

/* ── Communicator ────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* A fresh name and secret under which ranks find each other, for one mdp_comm_create on each rank. One rank makes it; the caller carries it
 * to the others and keeps it from strangers. Between nodes, MEGADP_ROOT (host:port) in the environment here is rank 0's address. Local, any
 * thread. Errors: INVALID (MEGADP_ROOT), SYSTEM. */
MDP_API mdp_status mdp_unique_id_create(mdp_unique_id* out);

/* Joins the ranks of one job into a communicator, the world. With an id, or config.bootstrap, config says which rank this is. With neither,
 * the launcher's environment does (megadp run, torchrun, SLURM, Open MPI, MPICH); without a launcher the rank is alone. With a bootstrap
 * rank 0 listens at its first network interface, or at MEGADP_ROOT.
 * config NULL: all defaults. Ranks are processes, or threads with a communicator each.
 * Collective over the job; blocking, at most for the timeout.
 * Errors: INVALID (config, environment), UNSUPPORTED (backend), TIMEOUT (names who did not come), PEER, DESYNC, BACKEND or CORRUPT (what
 * the bootstrap did, on any rank), STATE (UCX in a process forked from one that used it), SYSTEM, MEMORY. */
MDP_API mdp_status mdp_comm_create(const mdp_comm_config* config, const mdp_unique_id* id, mdp_comm** out);

/* Cuts a communicator: ranks that give the same color (>= 0) form a new one, ordered by key, then by rank in comm. *out is NULL if color
 * < 0. The parts share the context of comm, and so its failure. Collective; blocking. */
MDP_API mdp_status mdp_comm_split(mdp_comm* comm, int32_t color, int32_t key, mdp_comm** out);

/* This rank, 0 to size - 1; the number of ranks; the rank in the world of rank `rank`, as errors name it. -1 if an argument is wrong;
 * mdp_last_error then says why. Local, any thread. */
MDP_API int32_t mdp_comm_rank(const mdp_comm* comm);
MDP_API int32_t mdp_comm_size(const mdp_comm* comm);
MDP_API int32_t mdp_comm_world_rank(const mdp_comm* comm, int32_t rank);

/* The first failure that made this communicator's context unusable, whatever call or rank noticed it. status is MDP_OK while there is none.
 * It never goes away; such a context can only be destroyed. Local, any thread. */
MDP_API mdp_status mdp_comm_error_info(mdp_comm* comm, mdp_error_info* out);

/* A file descriptor for poll or an event loop: readable while a request of this context has finished that nobody has seen finished. Only
 * requests made after the first call of this count. The library owns and drains it: never read or close it. Local. Errors: SYSTEM. */
MDP_API mdp_status mdp_comm_event_fd(mdp_comm* comm, int32_t* out);

/* Makes the context unusable on all ranks: pending and later calls end with ABORTED, naming this rank. Does nothing after an earlier
 * failure. Any thread, also while another is inside a call; does not block. */
MDP_API mdp_status mdp_comm_abort(mdp_comm* comm);

/* Drops this handle. The last ends the context: others learn that this rank left, with CUDA once they have what it sent (within a
 * second). */
MDP_API void mdp_comm_destroy(mdp_comm* comm);

/* ── Collectives on the caller's arrays ──────────────────────────────────────────────────────────────────────────────────────────
 *
 * n is the number of ranks. Arrays are dense and row-major, in the memory of the host or, with CUDA, of the rank's device (the same kind on
 * all ranks). dtypes of `from` and `to` are equal; counts and dtypes are equal on all ranks; shapes do not matter otherwise. `from` and
 * `to` are apart, or "in place" as said. The arrays, not the structs, stay alive and untouched until the work is done. On the host, and
 * with MDP_COMM_EXACT_SUMS, n ranks are summed as a balanced binary tree: the sum of the first p plus the sum of the other n - p, each
 * taken likewise; p is the largest power of two below n. Sums are taken in f32 (f64 in f64; i64 wraps around, u8 stops at 255), divided
 * once, rounded once: the result depends neither on timing nor on where ranks are. AVG is not for i64 and u8. MAX and MIN of a NaN are a
 * NaN. Collective over comm. Errors: INVALID, UNSUPPORTED (memory of another kind), DESYNC (a rank called something else), PEER, TIMEOUT,
 * ABORTED; after the last four the context is lost. */

/* to = op over ranks of from. In place: the same data. */
MDP_API mdp_status mdp_all_reduce(mdp_comm* comm, const mdp_tensor* from, const mdp_tensor* to, mdp_op op, mdp_stream stream,
                                  mdp_request** out);
/* `from` has n times the elements of `to`: to = op over ranks of their piece number <this rank>. In place: `to` is that piece of from. */
MDP_API mdp_status mdp_reduce_scatter(mdp_comm* comm, const mdp_tensor* from, const mdp_tensor* to, mdp_op op, mdp_stream stream,
                                      mdp_request** out);
/* `to` has n times the elements of `from`: the pieces of all ranks in rank order. In place: `from` is piece number <this rank> of to. */
MDP_API mdp_status mdp_all_gather(mdp_comm* comm, const mdp_tensor* from, const mdp_tensor* to, mdp_stream stream, mdp_request** out);
/* Counts are equal and divisible by n: piece r of `from` becomes piece <this rank> of rank r's `to`. In place: the same data. */
MDP_API mdp_status mdp_all_to_all(mdp_comm* comm, const mdp_tensor* from, const mdp_tensor* to, mdp_stream stream, mdp_request** out);
/* tensor = rank root's, on all ranks. */
MDP_API mdp_status mdp_broadcast(mdp_comm* comm, const mdp_tensor* tensor, int32_t root, mdp_stream stream, mdp_request** out);
/* Over when all ranks have called it, and what this rank put on the communicator before has finished. */
MDP_API mdp_status mdp_barrier(mdp_comm* comm, mdp_request** out);

/* The same with pieces of different sizes: a list of counts has n numbers of elements, one for each rank, any of them 0, and is copied;
 * pieces lie one after another in rank order; an array has exactly the elements that its counts say. All else is as above. */

/* Counts are the same on all ranks; `from` has their sum, `to` counts[this rank]: to = op over ranks of that piece. In place: `to` is that
 * piece of from. The same bits as that piece of mdp_all_reduce on the host. */
MDP_API mdp_status mdp_reduce_scatter_v(mdp_comm* comm, const mdp_tensor* from, const mdp_tensor* to, const uint64_t* counts, mdp_op op,
                                        mdp_stream stream, mdp_request** out);
/* Counts are the same on all ranks; `from` has counts[this rank], `to` their sum: the pieces of all ranks. In place: `from` is its piece
 * of to. */
MDP_API mdp_status mdp_all_gather_v(mdp_comm* comm, const mdp_tensor* from, const mdp_tensor* to, const uint64_t* counts, mdp_stream stream,
                                    mdp_request** out);
/* Piece r of `from` becomes piece <this rank> of rank r's `to`: from_counts[r] on rank s equals to_counts[s] on rank r, DESYNC otherwise;
 * on a device that is not checked. The two arrays are apart. */
MDP_API mdp_status mdp_all_to_all_v(mdp_comm* comm, const mdp_tensor* from, const uint64_t* from_counts, const mdp_tensor* to,
                                    const uint64_t* to_counts, mdp_stream stream, mdp_request** out);

/* Messages between two ranks of comm; the others take no part, nor do messages count in the order of collectives. Those from one rank
 * to another are matched in the order of the calls; count and dtype are equal at both ends, DESYNC on both otherwise. What a rank calls
 * on one communicator, collectives and messages alike, begins when what it called before has ended: who sends and receives at once
 * calls mdp_send_recv, or uses two communicators. A send may wait for its receiver; programs in which each waits for another end in
 * TIMEOUT. Arrays, streams, `out` and errors are as in the collectives. On a device only ranks of one node compare counts and dtypes. */

/* Sends `from` to another rank, which receives it. */
MDP_API mdp_status mdp_send(mdp_comm* comm, const mdp_tensor* from, int32_t rank, mdp_stream stream, mdp_request** out);
/* Receives into `to` what another rank sends. */
MDP_API mdp_status mdp_recv(mdp_comm* comm, const mdp_tensor* to, int32_t rank, mdp_stream stream, mdp_request** out);
/* Both at once, with the same peer or two: neither half waits for the other. The arrays are apart; counts and dtypes may differ. A rank of
 * -1 leaves that half out, whose tensor is not looked at and may be NULL. With this rank itself on both sides it is a copy. */
MDP_API mdp_status mdp_send_recv(mdp_comm* comm, const mdp_tensor* from, int32_t to_rank, const mdp_tensor* to, int32_t from_rank,
                                 mdp_stream stream, mdp_request** out);

/* ── Grid ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Cuts a communicator into tensor, context, expert, data and pipeline parallel groups. Rank = sum of index * stride; the axes from left to
 * right in config.order vary from fastest to slowest. Two grids share the ranks: dense (dp = size / (tp cp pp)) and expert (dp = size /
 * (expert_tp ep pp)). config NULL: data parallelism only. Collective over world, with equal configurations; blocking.
 * Errors: INVALID (sizes that do not divide, order), DESYNC. */
MDP_API mdp_status mdp_grid_create(mdp_comm* world, const mdp_grid_config* config, mdp_grid** out);

/* This rank's index in the group that the axes (MDP_AXIS_*) span, and the group's size. Local. Errors: INVALID (no axis, EP on the
 * dense grid, CP on the expert grid). */
MDP_API mdp_status mdp_grid_coords(mdp_grid* grid, uint32_t axes, int32_t* index, int32_t* size);

/* The seed of this rank's random numbers (dropout, initial values): seed; TENSOR seed + 2718 + its index along TP; EXPERT seed + 1024 +
 * 100 times that along EP + that along the expert grid's TP. Local. The numbers are Megatron-LM's. Errors: INVALID. */
MDP_API mdp_status mdp_grid_seed(mdp_grid* grid, uint64_t seed, mdp_random random, uint64_t* out);

/* The communicator of that group, ranks in the order of config.order. Asking again, or for axes that cut alike (all ranks: the world's),
 * gives another handle of the same one. Collective over the world the first time; blocking. Errors: as mdp_grid_coords. */
MDP_API mdp_status mdp_grid_comm(mdp_grid* grid, uint32_t axes, mdp_comm** out);

MDP_API void mdp_grid_destroy(mdp_grid* grid);

/* ── Plan: pure, for a world of `size` ranks, nothing allocated but the answer. Local, any thread ────────────────────────────────── */

/* All groups that the axes span, as JSON: [[0,2],[1,3]]. Text: see mdp_info. Errors: as mdp_grid_create and mdp_grid_coords. */
MDP_API mdp_status mdp_grid_groups_json(const mdp_grid_config* grid, int32_t size, uint32_t axes, char* json, size_t capacity,
                                        size_t* needed);

/* What mdp_buffer_register and mdp_optimizer_create would allocate on `rank`. grid, config and optimizer NULL: all defaults. Errors: as
 * theirs; INVALID (SOME_GROUPS). */
MDP_API mdp_status mdp_plan(const mdp_grid_config* grid, int32_t size, int32_t rank, const mdp_buffer_config* config,
                            const mdp_param* params, size_t count, const mdp_optimizer_config* optimizer, mdp_plan_report* out);

/* The whole layout, as one line of JSON: arenas with the place of every parameter, buckets, the ranges that each rank owns, the bytes of
 * each rank. begin and end count elements in the arena. Text: see mdp_info. Errors: as mdp_plan. */
MDP_API mdp_status mdp_plan_json(const mdp_grid_config* grid, int32_t size, const mdp_buffer_config* config, const mdp_param* params,
                                 size_t count, const mdp_optimizer_config* optimizer, char* json, size_t capacity, size_t* needed);

/* ── Buffer ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Lays out parameters and their gradients, cuts them into buckets and allocates both (zeroed). Everything given is copied. Register in the
 * order of the forward pass: backward then fills the buckets one after another. Give comm, whose ranks are then all data-parallel, or a
 * grid; the other is NULL. All ranks of a data-parallel group register the same; if they differ, every rank is told.
 * Refused as MEMORY, before any is taken, if the ranks of a node or of a control group need more together than is left;
 * MDP_BUFFER_IGNORE_MEMORY of any rank goes ahead, here and in mdp_optimizer_create.
 * Collective; blocking. What one rank has no memory for no rank gets.
 * Errors: INVALID (names the parameter), UNSUPPORTED, DESYNC (names the first difference and the ranks), MEMORY, SYSTEM. */
MDP_API mdp_status mdp_buffer_register(mdp_comm* comm, mdp_grid* grid, const mdp_buffer_config* config, const mdp_param* params,
                                       size_t count, mdp_buffer** out);

/* The ranges of elements whose optimizer state this rank keeps, by arena and position. *needed becomes their number, also if capacity is
 * too small (INVALID). ranges may be NULL if capacity is 0. Local. */
MDP_API mdp_status mdp_buffer_owned(mdp_buffer* buffer, mdp_range* ranges, size_t capacity, size_t* needed);

/* The index of the parameter of that name; the numbers of parameters (frozen ones too) and of buckets. Local. */
MDP_API mdp_status mdp_buffer_find(mdp_buffer* buffer, const char* name, size_t* param);
MDP_API mdp_status mdp_buffer_counts(mdp_buffer* buffer, size_t* params, size_t* buckets);

/* Library memory of one parameter or its gradient; it and out's shape live until the last handle and DLPack tensor of the buffer is gone.
 * Write parameters only between a step and the next forward, and call mdp_param_changed; write gradients before mdp_grad_ready. After
 * mdp_grad_sync a gradient holds the reduced one: with ZERO_0 all of it, with ZERO_1 the owned ranges; it may be written there until the
 * step, followed by mdp_grad_changed. After a step with a request, wait for the parameter before its gradient is written. Over microbatches
 * the caller adds into the view. Local. Errors: STATE (frozen); UNSUPPORTED (gradients with ZERO_2). */
MDP_API mdp_status mdp_buffer_param_view(mdp_buffer* buffer, size_t param, mdp_tensor* out);
MDP_API mdp_status mdp_buffer_grad_view(mdp_buffer* buffer, size_t param, mdp_tensor* out);

/* A view, or a part of one, as a DLPack 1.0 managed tensor without copying. It keeps the memory alive; the consumer calls its deleter once,
 * from any thread. Local. Errors: INVALID (not memory of this buffer), MEMORY. */
MDP_API mdp_status mdp_buffer_to_dlpack(mdp_buffer* owner, const mdp_tensor* view, struct DLManagedTensorVersioned** out);

/* Copies all parameters from rank `root` of each data-parallel group, dense and expert, to the others;
 * what is tied from the first stage. Collective over the world. Errors: STATE (a caller's step; ranks launched different gradients). */
MDP_API mdp_status mdp_buffer_broadcast(mdp_buffer* buffer, int32_t root, mdp_request** out);

/* Compares all parameters, bit for bit, over each data-parallel group, over tp what is not sharded, and what is tied; of the latter two
 * also reduced gradients. All ranks get the same answer. Collective over the world; blocking. Errors: STATE (mid-step), DESYNC (names the
 * first parameter that differs and two ranks). */
MDP_API mdp_status mdp_buffer_verify(mdp_buffer* buffer);

/* Sets all gradients to zero and begins the step anew. Only needed if a framework adds into
 * the views. Local; waits for puts of other threads and for the last step. Errors: STATE (a bucket was launched, or a sync is pending). */
MDP_API mdp_status mdp_buffer_zero_grad(mdp_buffer* buffer, mdp_stream stream);

/* Counters since registration; the last step's times of one bucket, by number in launch order. Local. */
MDP_API mdp_status mdp_buffer_stats(mdp_buffer* buffer, mdp_stats_report* out);
MDP_API mdp_status mdp_buffer_bucket(mdp_buffer* buffer, size_t bucket, mdp_bucket_report* out);

/* The mdp_param.use_order of each parameter with which the last synced step's gradients would have filled bucket after bucket. The same on
 * all ranks of a stage. Collective over the world; blocking. Errors: INVALID (count), STATE (no sync yet), UNSUPPORTED (ranks of a stage
 * hold different experts). */
MDP_API mdp_status mdp_buffer_use_order(mdp_buffer* buffer, int32_t* use_order, size_t count);

/* Drops this handle. */
MDP_API void mdp_buffer_destroy(mdp_buffer* buffer);

/* ── A step: parameters and gradients ────────────────────────────────────────────────────────────────────────────────────────────
 *
 *   for each microbatch: mdp_microbatch_begin (with one microbatch: not needed)
 *     forward    mdp_param_wait before a parameter is read (after a step without a request: not needed)
 *     backward   mdp_grad_put, or mdp_grad_ready if the gradient was written into the view; mdp_grad_skip if there is none
 *   mdp_grad_sync (not needed if the step follows at once), mdp_optimizer_step
 *
 * Gradients of the microbatches and uses of a step are added up; the reduced gradient is the sum over ranks, divided (mdp_scaling).
 * A bucket is launched during the last microbatch, as soon as it and all buckets before it are full. With ZERO_2 it is in each: m
 * microbatches send m times as much, all ranks make as many (DESYNC), a half-width gradient is rounded once in each. A step begins with
 * the first of these calls after the last mdp_optimizer_step. After a sync without a step it begins with mdp_microbatch_begin or
 * mdp_buffer_zero_grad. */

/* Says whether (1) or not (0) the microbatch that begins is the step's last: only then do gradients become final. Without this call every
 * step has one microbatch. With ZERO_2 it launches what the one before has left, zero where nothing came. Local; waits for puts of other
 * threads. Errors: STATE (gradients of the last microbatch have come already; one is lent; a sync is pending). */
MDP_API mdp_status mdp_microbatch_begin(mdp_buffer* buffer, int32_t is_last);

/* Returns when the parameter (SIZE_MAX: every one) holds its values after the last step. Local; waits for the gather of its bucket, so at
 * most for the timeout. Any thread. */
MDP_API mdp_status mdp_param_wait(mdp_buffer* buffer, size_t param, mdp_stream consumer);

/* Copies a parameter out of, or into, the library's memory, cast between f32, bf16, f16 and f64 (to nearest even); its shape, any strides.
 * Waits as mdp_param_wait. Write the same on all ranks and stages that have it, or call mdp_buffer_broadcast; its master follows where
 * it does not round to that. Local. Errors: STATE (frozen; in a step). */
MDP_API mdp_status mdp_param_read(mdp_buffer* buffer, size_t param, const mdp_tensor* to, mdp_stream stream);
MDP_API mdp_status mdp_param_write(mdp_buffer* buffer, size_t param, const mdp_tensor* from, mdp_stream stream);

/* To be called after writes through parameter views: masters follow as with mdp_param_write. With CUDA these are on the default stream, or
 * done. Local. */
MDP_API mdp_status mdp_param_changed(mdp_buffer* buffer);

/* Copies a gradient into its slot and counts it as ready: the parameter's shape, any strides, f32, bf16, f16 or f64. The first of a step
 * replaces what is in the slot, later ones are added. flags: MDP_GRAD_*. The array may be reused on return. Local; waits for the last
 * step's update of the bucket. With ZERO_2 it waits for nothing: while the slot is another bucket's, the gradient lies outside the pool.
 * Any thread. Errors: STATE (frozen, skipped, lent, after mdp_grad_sync, or more often than uses_per_step), MEMORY (spill_limit),
 * UNSUPPORTED (MDP_GRAD_ADD with ZERO_2). */
MDP_API mdp_status mdp_grad_put(mdp_buffer* buffer, size_t param, const mdp_tensor* grad, uint64_t flags, mdp_stream producer);

/* Lends the memory where the gradient goes, until mdp_grad_ready; or mdp_grad_release, if nothing was written or *first. On
 * *first write it, else add to it. Its shape, row-major; the gradient dtype, or f32 (ZERO_2, half width, uses_per_step above 1). Like
 * mdp_grad_put otherwise. */
MDP_API mdp_status mdp_grad_acquire(mdp_buffer* buffer, size_t param, mdp_tensor* out, int32_t* first, mdp_stream producer);
MDP_API mdp_status mdp_grad_release(mdp_buffer* buffer, size_t param);

/* The gradient was written into (or added to) its view or what mdp_grad_acquire lent (ZERO_2: only there); counts it as ready. Local, does
 * not block, any thread. Errors: as mdp_grad_put, and STATE while another thread puts the same parameter. */
MDP_API mdp_status mdp_grad_ready(mdp_buffer* buffer, size_t param, mdp_stream producer);

/* This rank has no gradient of the parameter in this microbatch. If none of the step's brings one, it adds zero, whatever `missing` says of
 * the others; if that is so on all ranks, the optimizer leaves the parameter and its state alone. Local, does not block, any thread.
 * Errors: as mdp_grad_ready. */
MDP_API mdp_status mdp_grad_skip(mdp_buffer* buffer, size_t param);

/* With MDP_SCALING_TOKENS: over how many tokens (or samples) this rank's losses of the step are summed. Steps and norms divide by the sum
 * over dp x cp, by 1 if that is 0; reduced gradients stay sums. Ranks that share a batch (tp, pp) say the same, or one does. Local, once a
 * step. If some rank's gradients are half-width, before the first one, collective over the world, blocking; then reductions divide. Errors:
 * INVALID (count), STATE. */
MDP_API mdp_status mdp_grad_tokens(mdp_buffer* buffer, double count);

/* Ends backward: launches what is left, waits until all is reduced, and agrees on what was missing or skipped. Again before the
 * step: the same outcome. After a failure mdp_microbatch_begin or mdp_buffer_zero_grad begins anew. Collective over the world. Errors, on
 * all ranks: STATE (a parameter never became ready, or is replicated and came on some tensor-parallel ranks; not in the last
 * microbatch); NUMERIC (CHECK_FINITE: names parameter, element, value, microbatch, rank; the step may follow); DESYNC (ranks'
 * last steps differed). */
MDP_API mdp_status mdp_grad_sync(mdp_buffer* buffer, mdp_stream consumer, mdp_request** out);

/* The five calls below are for between mdp_grad_sync and mdp_optimizer_step, STATE otherwise. `params` lists `count` parameters; NULL with
 * count 0: all of them. */

/* The L2 norm of the reduced gradients of these parameters over the whole model, in float64: every element counts once in the world. Inf or
 * NaN, on all ranks, if a gradient is not finite. Not divided by a loss scale. Collective over the world, with the same list on ranks that
 * share parameters; blocking. Errors: INVALID (a parameter that is frozen, out of range, or listed twice). */
MDP_API mdp_status mdp_grad_norm(mdp_buffer* buffer, const size_t* params, size_t count, double* norm);

/* Of sets of parameters more than mdp_grad_norm: parameter p is in set sets[p], below count, with SIZE_MAX in none; NULL: all
 * are in set 0. All ranks get the same numbers. Collective over the world, with equal count; blocking. Errors: INVALID (sets), MEMORY. */
MDP_API mdp_status mdp_grad_summarize(mdp_buffer* buffer, const size_t* sets, size_t count, mdp_grad_summary* out);

/* Multiplies the reduced gradients of these parameters by factor (as f32), in place: with ZERO_0 all of a gradient, else what this
 * rank owns. To be called alike on all ranks. Local; with CUDA it waits for what was submitted before. Errors: INVALID (as
 * mdp_grad_norm; factor not finite). */
MDP_API mdp_status mdp_grad_scale(mdp_buffer* buffer, const size_t* params, size_t count, double factor, mdp_stream stream);

/* What this rank owns of a reduced gradient: one dimension, from mdp_range.param_begin on, f32 with ZERO_2; empty if it owns nothing.
 * Library memory, for reading and writing until the step. Local. Errors: STATE (frozen). */
MDP_API mdp_status mdp_grad_owned(mdp_buffer* buffer, size_t param, mdp_tensor* out);

/* To be called after reduced gradients were written: later calls come after the producer's work. Unless ZERO_0 only what this rank owns
 * counts. Local. */
MDP_API mdp_status mdp_grad_changed(mdp_buffer* buffer, mdp_stream producer);

/* ── Optimizer ───────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Updates what this rank owns by config.rule, from fp32 masters (f32 parameters are their own) and the rule's state, zero at first: exp_avg
 * and exp_avg_sq (ADAMW, ADAM), momentum_buffer (SGD_MOMENTUM, SGD_NESTEROV), exp_avg (LION). Clipping multiplies gradients by
 * max_grad_norm / (norm + 1e-6) if that is below 1. config NULL: all defaults. A buffer may have several optimizers: what one
 * changed, the masters of the others follow. MEMORY as mdp_buffer_register.
 * Collective over the world, with equal configurations; blocking. Errors: INVALID (a value; a parameter's group), DESYNC, MEMORY,
 * UNSUPPORTED (NO_MASTER with f16, CALLER). */
MDP_API mdp_status mdp_optimizer_create(mdp_buffer* buffer, const mdp_optimizer_config* config, mdp_optimizer** out);

/* Replaces the values of one parameter group from the next step on; called alike on all ranks. Local. */
MDP_API mdp_status mdp_optimizer_set_param_group(mdp_optimizer* optimizer, size_t group, const mdp_param_group* value);

/* Gives the optimizer a loss scaler, or with NULL none: steps divide gradients by its scale, skip non-finite ones, and take
 * config.loss_scale no more. As Megatron-LM's dynamic scaler; with hysteresis 1 torch.amp.GradScaler. Waits for the last step.
 * Collective over the world, with equal values; blocking. Errors: INVALID, STATE (mid-step), DESYNC. */
MDP_API mdp_status mdp_optimizer_set_scaler(mdp_optimizer* optimizer, const mdp_scaler* scaler);

/* The scaler as the last step has left it, which is waited for. Local. Errors: STATE (none). */
MDP_API mdp_status mdp_optimizer_scaler(mdp_optimizer* optimizer, mdp_scaler* out);

/* Where the scale lies: one f32 in the memory of the backend, to be read in the order of the stream that steps are given; after a step with
 * a request, once that has ended or mdp_param_wait was called. Valid as long as the optimizer. Local. Errors: STATE (no scaler). */
MDP_API mdp_status mdp_optimizer_scale(mdp_optimizer* optimizer, mdp_tensor* out);

/* Takes one step: mdp_grad_sync unless it was called, norm and finite flag over all ranks, then by bucket clip, update, cast, and gather of
 * the parameters. config NULL: defaults; report NULL: not wanted. A non-finite gradient skips the step if there is a scaler or
 * config.loss_scale (MDP_STEPPED_SKIPPED), and is NUMERIC otherwise; either way nothing has changed on any rank. Collective over the world.
 * Returns when all parameters are whole; with out once the report is known, while parameters are gathered. With CUDA a step without
 * report does not wait for its work: NUMERIC is then the outcome of the request, or of the next step, which is not taken. UNCHECKED with
 * NO_OVERLAP on one node, without mdp_grad_sync (all ranks alike): one pass.
 * Ranks of a pipeline stage are told the same. Errors: STATE (as mdp_grad_sync, or that failed), NUMERIC, INVALID (UNCHECKED with clipping,
 * scaling, CALLER; ranks differ; after mdp_grad_sync the next one is DESYNC). */
MDP_API mdp_status mdp_optimizer_step(mdp_optimizer* optimizer, const mdp_step_config* config, mdp_step_report* report, mdp_request** out);

/* One step of several optimizers of one buffer, each with MDP_OPTIMIZER_SOME_GROUPS: one sync, norm, skip decision and report, which are
 * the first one's, as is the scaler. With equal clipping. Collective over the world, with the same list. As mdp_optimizer_step otherwise.
 * Errors: INVALID (a trained parameter whose group none or two have; config.lr), STATE, NUMERIC. */
MDP_API mdp_status mdp_optimizer_step_many(mdp_optimizer* const* optimizers, size_t count, const mdp_step_config* config,
                                           mdp_step_report* report, mdp_request** out);

/* The update of an optimizer whose rule is MDP_RULE_CALLER: steps call fn on their own thread, once for each piece that this rank owns of a
 * parameter, unless the step is skipped. Only requests, errors, ranks and mdp_comm_abort may be asked for in it (STATE). Parameters are
 * rounded and gathered when all ranks' functions have returned 0. If one did not, the step is ABORTED on all ranks: masters and state may
 * have changed, and steps are STATE until a checkpoint is loaded or mdp_optimizer_set_steps called. On a device each such step waits for
 * the norm. Local. Errors: INVALID (fn NULL), STATE (another rule). */
MDP_API mdp_status mdp_optimizer_set_update(mdp_optimizer* optimizer, mdp_update_fn fn, void* user);

/* mdp_optimizer_step_many in three, without functions to be called; optimizers[0] leads. Until finish the gradients are the step's.
 * Collective, blocking, errors: as there. */
MDP_API mdp_status mdp_optimizer_step_begin(mdp_optimizer* const* optimizers, size_t count, const mdp_step_config* config);
/* The next piece; with count 0: there is none any more. Local. */
MDP_API mdp_status mdp_optimizer_step_next(mdp_optimizer* optimizer, mdp_update* out);
/* failed: not 0 if a piece could not be updated, on any rank; see mdp_optimizer_set_update. Errors: ABORTED, STATE (pieces are left). */
MDP_API mdp_status mdp_optimizer_step_finish(mdp_optimizer* optimizer, int32_t failed, mdp_step_report* report, mdp_request** out);

/* Puts the averages of its parameters (config.average_decay), rounded, in their place on all ranks; called again, what was there, bit for
 * bit. Meanwhile gradients, steps, checkpoints, "master" and writes of parameters are STATE in all of the buffer. Collective over the
 * world; returns at once with out, else when parameters are whole. Errors: STATE (no average; another optimizer's are there; in
 * backward; the caller's update is under way or has failed). */
MDP_API mdp_status mdp_optimizer_swap_average(mdp_optimizer* optimizer, mdp_stream stream, mdp_request** out);

/* The owned slice of one parameter's "master" (INVALID with NO_MASTER), "average", or of what the rule keeps, by name: f32, or state_dtype
 * (of param_states U8), one dimension, from mdp_range.param_begin on; empty if this rank owns nothing of it. Library memory, valid as long
 * as the optimizer; may be written between steps and before the first. A "master" holds what is written into it until its parameter is
 * written otherwise. Waits for the last step. Local. Errors: STATE (frozen; swapped). */
MDP_API mdp_status mdp_optimizer_state(mdp_optimizer* optimizer, size_t param, const char* name, mdp_tensor* out);

/* How many steps the parameter has taken part in: skipped steps do not count, nor those for which all ranks skipped the parameter. Waits
 * for the last step. Local. Errors: STATE (frozen). */
MDP_API mdp_status mdp_optimizer_steps(mdp_optimizer* optimizer, size_t param, uint64_t* steps);

/* Goes on as after `taken` steps, from which reports count on, and of which parameter p has taken part in steps[p]; NULL with count 0:
 * each in all. With mdp_optimizer_state, to restore what was saved; called alike on all ranks. Waits for the last step. Local.
 * Errors: INVALID (count, or steps[p] above taken), STATE (mid-step). */
MDP_API mdp_status mdp_optimizer_set_steps(mdp_optimizer* optimizer, uint64_t taken, const uint64_t* steps, size_t count);

/* The rule, its values, parameter groups, steps taken, and every array that mdp_optimizer_state knows, as one line of JSON. Waits for the
 * last step. Local. Text: see mdp_info. */
MDP_API mdp_status mdp_optimizer_info(mdp_optimizer* optimizer, char* json, size_t capacity, size_t* needed);

MDP_API void mdp_optimizer_destroy(mdp_optimizer* optimizer);

/* ── Checkpoint ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────
 *
 *   DIR/checkpoint-000007/manifest.json, rank-00000.safetensors, ...
 *
 * Whole or not there. They load on any number of ranks, with any sharding, buckets, instances, tensor-parallel size and type of parameters
 * (casts are logged). Names are unique in the model. Between steps: docs/checkpoints.md. */

/* Saves parameters, optimizer state, step counts, tensors and data, with the next free number. Collective over the parts' world; waits for
 * files beyond the timeout. With `out` it returns when all is copied, to memory that stays; later saves and loads wait for it, and a save
 * tells of a failure that no request told. Errors, on all ranks, older ones stay: INVALID, DESYNC, STATE, SYSTEM, ABORTED. */
MDP_API mdp_status mdp_checkpoint_save(const mdp_checkpoint_config* config, mdp_request** out);

/* Loads the newest checkpoint; or, with MDP_CHECKPOINT_PARAMS_ONLY, a model: a safetensors file of whole arrays, an index (.json) of
 * several, or a folder with model.safetensors or its index. Collective, blocking, as mdp_checkpoint_save. Errors, on all ranks: INVALID
 * (another model or rule), STATE (in a step), UNSUPPORTED (a later version), SYSTEM, CORRUPT. Mostly nothing has changed; where data
 * was found CORRUPT half-way, parameters, views, states and steps are STATE until one has been loaded. */
MDP_API mdp_status mdp_checkpoint_load(const mdp_checkpoint_config* config);

/* The newest checkpoint's path and manifest, or a model's, as JSON. Local. Text: see mdp_info. Errors: SYSTEM, CORRUPT, UNSUPPORTED. */
MDP_API mdp_status mdp_checkpoint_info(const char* directory, char* json, size_t capacity, size_t* needed);

/* The newest checkpoint's rank_data of rank `rank`, or, -1, shared_data. *needed becomes its length, also if capacity is too small
 * (INVALID). Local. Errors: as mdp_checkpoint_info; INVALID (rank). */
MDP_API mdp_status mdp_checkpoint_data(const char* directory, int32_t rank, void* data, size_t capacity, size_t* needed);

/* Reads all of the newest checkpoint. Each damage is a line of `damage`, which is cut off at capacity; *needed becomes what all takes, with
 * the NUL. Both may be NULL. Local. Errors: CORRUPT (something is damaged), SYSTEM, UNSUPPORTED, INVALID. */
MDP_API mdp_status mdp_checkpoint_verify(const char* directory, char* damage, size_t capacity, size_t* needed);

/* Writes the newest checkpoint's parameters and tensors, whole, under their names, as an ordinary safetensors file, path. With more than
 * most_bytes of data (0: any) as several and path.index.json. Over nothing; whole or not there. Local; needs 2 MiB, and 1 MiB for each rank
 * that has saved, of 64 at most. Errors: INVALID (path, or it is there), SYSTEM, CORRUPT, UNSUPPORTED. */
MDP_API mdp_status mdp_checkpoint_export(const char* directory, const char* path, uint64_t most_bytes);

/* ── Request. Local, any thread ──────────────────────────────────────────────────────────────────────────────────────────────── */

/* MDP_PENDING, or how the operation ended; asking again gives the same. mdp_request_wait returns MDP_PENDING at the timeout (UINT64_MAX:
 * never). Errors: those of the operation. */
MDP_API mdp_status mdp_request_test(mdp_request* request);
MDP_API mdp_status mdp_request_wait(mdp_request* request, uint64_t timeout_ns);

/* MDP_OK if the operation has ended, well or not, otherwise MDP_PENDING. Unlike mdp_request_test it tells of no failure, so a save still
 * does. */
MDP_API mdp_status mdp_request_peek(mdp_request* request);

/* Drops the request, finished or not; the operation goes on, and uses the caller's arrays until it has finished. */
MDP_API void mdp_request_free(mdp_request* request);

#ifdef __cplusplus
}
#endif

#ifdef SWIG
%include "megadp_layers.h"
#else
#include "megadp_layers.h"
#endif
#endif
