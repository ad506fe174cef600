/* SPDX-License-Identifier: Apache-2.0
 *
 * megadp: data-parallel training for every language. The only public header; C99 to C++20.
 *
 * Conventions, said once
 *   status    Every call that can fail returns mdp_status: < 0 failed, 0 done, > 0 not yet. The sentence that explains a failure is read
 *             by mdp_last_error() on the same thread, before that thread's next megadp call; in hosts whose tasks change threads
 *             (goroutines, virtual threads), fetch status and text within one native call. A failure that arrives later (a peer died)
 *             is also kept in the communicator: mdp_comm_error_info().
 *   structs   `struct_size` comes first and is sizeof the struct as the caller compiled it, in and out: the library reads and writes
 *             the smaller of the caller's size and its own. Structs have no holes and grow at the end only. In an array of structs
 *             the first element's struct_size is the stride, and every element carries the same.
 *   zero      is the default of every field. Where a caller may mean zero itself, zero is the default too, or a flag says "literally".
 *   enums     are fixed-width integers with written values; values are only ever appended. An unknown value or flag is refused.
 *   handles   are owned by the caller and reference-counted inside: a child keeps its parents alive, so they may be destroyed in any
 *             order. `out` is the last argument and is written on success only. A destroy or free accepts NULL, is local, never waits
 *             for another rank, may be called from any thread, and does nothing in a forked child. Any other call in a forked child
 *             is MDP_E_STATE.
 *   local / collective   "Collective" calls must be made by every rank of the communicator, in the same order; they wait for the
 *             other ranks, at most for the communicator's timeout. All others are local and never wait for another rank.
 *   streams   On the host a stream is NULL: operands are ready when the call is made. `mdp_request **out` may be NULL: then the call
 *             returns when the work is done; otherwise it returns at once and the request reports the end.
 *   tensors   Shape and strides are counted in elements. A tensor passed in is borrowed for the call only.
 *   threads   One thread at a time per communicator tree (a communicator, its splits, and all made from them). From any thread at any
 *             time: mdp_grad_put, mdp_grad_ready, mdp_grad_skip, mdp_param_wait, mdp_request_*, mdp_comm_abort,
 *             mdp_comm_error_info, every destroy and free. The log callback runs inside a call of the user's, never inside a destroy,
 *             a free or mdp_grad_*.
 *   since     Every function and type is here since 0.1, unless it says otherwise. */
#ifndef MEGADP_H
#define MEGADP_H

#include <stddef.h>
#include <stdint.h>

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
typedef void* mdp_stream;                   /* NULL on the host                                            */
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
  MDP_E_ABORTED = -10,    /* mdp_comm_abort was called, here or on another rank                  */
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
  MDP_PLACEMENT_REPLICATED = 1,
  MDP_PLACEMENT_SHARDED = 2
};

typedef uint32_t mdp_sharding;
enum {
  MDP_SHARDING_DEFAULT = 0, /* ZERO_1                                                                                      */
  MDP_SHARDING_ZERO_0 = 1,  /* nothing sharded: gradients are all-reduced, every rank keeps all optimizer state            */
  MDP_SHARDING_ZERO_1 = 2   /* gradients are reduce-scattered, optimizer state is sharded, parameters are all-gathered     */
};

typedef uint32_t mdp_rule;
enum {
  MDP_RULE_ADAMW = 0
};

typedef uint32_t mdp_missing; /* what mdp_grad_sync does about a parameter that never became ready */
enum {
  MDP_MISSING_ERROR = 0, /* MDP_E_STATE on all ranks, naming the parameter and the rank      */
  MDP_MISSING_ZERO = 1,  /* this rank adds nothing to it; the others' gradients count        */
  MDP_MISSING_SKIP = 2   /* as mdp_grad_skip                                                 */
};

enum {
  MDP_PARAM_FROZEN = 1,
  MDP_PARAM_OWN_BUCKET = 2
}; /* mdp_param.flags */
enum {
  MDP_BUFFER_NO_OVERLAP = 1,
  MDP_BUFFER_HIGH_BANDWIDTH_PADDING = 4,
  MDP_BUFFER_REFERENCE_BUCKETS = 8
}; /* mdp_buffer_config.flags */
enum {
  MDP_GRAD_ADD = 1,
  MDP_GRAD_MORE = 2
}; /* mdp_grad_put            */
enum {
  MDP_GROUP_SET_LR = 1
}; /* mdp_group.flags         */
enum {
  MDP_OPTIMIZER_SET_BETAS = 1
}; /* mdp_optimizer_config.flags */
enum {
  MDP_STEP_SET_LR = 1
}; /* mdp_step_config.flags   */
enum {
  MDP_STEPPED_SKIPPED = 1,
  MDP_STEPPED_CLIPPED = 2
}; /* mdp_step_report.flags   */

typedef uint32_t mdp_bucket_state;
enum {
  MDP_BUCKET_FILLING = 0,   /* waiting for gradients                                    */
  MDP_BUCKET_READY = 1,     /* all gradients are there; waits for earlier buckets       */
  MDP_BUCKET_IN_FLIGHT = 2, /* being reduced                                            */
  MDP_BUCKET_REDUCED = 3,   /* reduced                                                  */
  MDP_BUCKET_GATHERING = 4, /* stepped; new parameters on their way                     */
  MDP_BUCKET_WHOLE = 5      /* parameters up to date on all ranks                       */
};

/* ── Structs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct {
  uint8_t bytes[128];
} mdp_unique_id; /* opaque; may be sent to other ranks by any means; holds a secret */

typedef struct { /* details of a failure; -1: not known or not about one */
  uint32_t struct_size;
  mdp_status status;
  int32_t rank;       /* rank in the world (the communicator that was not split) that is to blame */
  int32_t bucket;     /* number of the bucket in launch order                                     */
  int64_t param;      /* index of the parameter at registration                                   */
  uint64_t operation; /* running number of the collective, 0: none                            */
  char text[1024];
} mdp_error_info;

typedef struct {
  uint32_t struct_size;
  mdp_backend backend;
  int32_t rank;         /* with an id: this rank; from the environment: leave 0                                          */
  int32_t nranks;       /* with an id: how many ranks, at least 1; from the environment: 0, or what the launcher must say */
  int32_t device;       /* reserved for device backends: 0                                                               */
  int32_t host_threads; /* reserved: 0                                                                                   */
  uint64_t timeout_ns;  /* how long any collective waits for another rank; 0: five minutes                               */
  uint64_t flags;       /* 0                                                                                             */
} mdp_comm_config;

typedef struct {
  uint32_t struct_size;
  int32_t tp, cp, ep, pp; /* tensor, context, expert, pipeline parallel sizes; 0: 1. dp is what is left                    */
  int32_t expert_tp;      /* tensor parallel size of experts; 0: tp                                                      */
  int32_t instances;      /* optimizer instances; 0 or 1 (more are planned)                                              */
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
  const char* name;      /* unique, UTF-8, at most 255 bytes; copied                                                  */
  const int64_t* shape;  /* ndim sizes; a zero size is allowed; copied                                                */
  int32_t ndim;          /* 0 to 16                                                                                   */
  int32_t uses_per_step; /* how many mdp_grad_put or mdp_grad_ready make it ready in a microbatch; 0: 1               */
  mdp_param_class param_class;
  mdp_placement placement;
  int32_t shard_dim;    /* with PLACEMENT_SHARDED: dimension cut over the tensor-parallel ranks                      */
  int32_t shard_stride; /* with PLACEMENT_SHARDED: how many pieces per rank; 0: 1                                    */
  int32_t group;        /* index of a parameter group of the optimizer                                               */
  int32_t reserved;
  uint64_t flags; /* MDP_PARAM_*                                                                               */
} mdp_param;

typedef struct {
  uint32_t struct_size;
  mdp_dtype grad_dtype; /* F32 (default) or MDP_DTYPE_SAME                                                               */
  mdp_sharding sharding;
  mdp_missing missing;
  uint64_t bucket_elements; /* a bucket closes at this size; 0: the library decides; UINT64_MAX: one bucket                  */
  uint64_t bucket_count;    /* instead of bucket_elements: all elements / this                                               */
  uint64_t flags;           /* MDP_BUFFER_*; REFERENCE_BUCKETS: max(40,000,000, 1,000,000 x dp) elements                     */
} mdp_buffer_config;

typedef struct { /* memory of one rank, in bytes, before rounding each allocation up to a page */
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t param_bytes, grad_bytes, grad_shard_bytes, master_bytes, state_bytes, scratch_bytes;
  uint64_t padding_elements; /* alignment gaps and bucket padding, over all arenas */
  uint64_t buckets;
  uint64_t owned_elements;
} mdp_plan_report;

typedef struct { /* one owned piece of one parameter */
  uint32_t struct_size;
  uint32_t reserved;
  int64_t buffer;      /* arena: one per (parameter dtype, gradient dtype, class), in order of first registration */
  int64_t bucket;      /* within the arena                                                                     */
  int64_t param;       /* index at registration                                                                */
  int64_t begin, end;  /* elements within the arena                                                            */
  int64_t param_begin; /* element of the flattened parameter at `begin`                                        */
} mdp_range;

typedef struct { /* one parameter group */
  uint32_t struct_size;
  uint32_t reserved;
  double lr;           /* 0: the optimizer's, unless MDP_GROUP_SET_LR */
  double weight_decay; /* taken literally                             */
  uint64_t flags;
} mdp_group;

typedef struct {
  uint32_t struct_size;
  mdp_rule rule;
  double lr;               /* 0: 1e-3                                                                          */
  double beta1, beta2;     /* 0: 0.9, 0.999, unless MDP_OPTIMIZER_SET_BETAS                                    */
  double eps;              /* 0: 1e-8                                                                          */
  double weight_decay;     /* of parameters when there are no groups                                           */
  double max_grad_norm;    /* gradients are scaled down to this global norm; 0: off                            */
  const mdp_group* groups; /* NULL: one group, with the values above                                        */
  uint64_t ngroups;
  uint64_t flags;
} mdp_optimizer_config;

typedef struct {
  uint32_t struct_size;
  uint32_t reserved;
  double lr;         /* replaces the optimizer's from this step on; 0: unchanged, unless MDP_STEP_SET_LR           */
  double loss_scale; /* gradients are divided by it; 0: 1. When given, a non-finite gradient on any rank makes all
                        ranks skip the step                                                                        */
  mdp_stream stream;
  uint64_t flags;
} mdp_step_config;

typedef struct {
  uint32_t struct_size;
  uint32_t reserved;
  double grad_norm;   /* L2 norm of the whole reduced gradient, over all ranks, before clipping, after loss_scale */
  double clip_factor; /* 1: not clipped                                                                          */
  double loss_scale;
  uint64_t step;  /* steps taken so far, skipped ones not counted                                            */
  uint64_t flags; /* MDP_STEPPED_*                                                                           */
} mdp_step_report;

typedef struct { /* sums since registration; times in nanoseconds */
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t comm_ns;              /* time the communication queue spent in gradient and parameter collectives     */
  uint64_t exposed_ns;           /* time callers spent waiting for them (sync, step, param_wait)                 */
  uint64_t bytes;                /* bytes of the buckets reduced and gathered                                    */
  uint64_t buckets;              /* buckets launched                                                             */
  uint64_t launched_in_backward; /* of these, before mdp_grad_sync was called                                    */
  uint64_t syncs;                /* calls of mdp_grad_sync that finished                                         */
} mdp_stats_report;

typedef struct { /* the last step's times of one bucket: CLOCK_MONOTONIC, nanoseconds; 0: has not happened */
  uint32_t struct_size;
  mdp_bucket_state state;
  uint64_t ready_ns;        /* its last gradient arrived                                                     */
  uint64_t reduce_begin_ns; /* taken on the communication queue                                              */
  uint64_t reduce_end_ns;
  uint64_t gather_begin_ns;
  uint64_t gather_end_ns;
  uint64_t sync_ns; /* mdp_grad_sync was called: the end of backward                                 */
} mdp_bucket_report;

/* level: 0 error, 1 warning, 2 info, 3 debug. `text` is NUL-terminated and borrowed for the call. */
typedef void (*mdp_log_fn)(void* user, int32_t level, const char* text, size_t length);

/* ── Library ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

MDP_API uint32_t mdp_version(void); /* major << 16 | minor << 8 | patch */
MDP_API const char* mdp_status_name(mdp_status status);
MDP_API const char* mdp_last_error(void);
MDP_API mdp_status mdp_last_error_info(mdp_error_info* out);
MDP_API mdp_status mdp_info(char* json, size_t capacity, size_t* needed);
MDP_API mdp_status mdp_log_set(mdp_log_fn fn, void* user);

/* ── Communicator ────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

MDP_API mdp_status mdp_unique_id_create(mdp_unique_id* out);
MDP_API mdp_status mdp_comm_create(const mdp_comm_config* config, const mdp_unique_id* id, mdp_comm** out);
MDP_API mdp_status mdp_comm_split(mdp_comm* comm, int32_t color, int32_t key, mdp_comm** out);
MDP_API int32_t mdp_comm_rank(const mdp_comm* comm);
MDP_API int32_t mdp_comm_size(const mdp_comm* comm);
MDP_API mdp_status mdp_comm_error_info(mdp_comm* comm, mdp_error_info* out);
MDP_API mdp_status mdp_comm_event_fd(mdp_comm* comm, int32_t* out);
MDP_API mdp_status mdp_comm_abort(mdp_comm* comm);
MDP_API void mdp_comm_destroy(mdp_comm* comm);
MDP_API mdp_status mdp_all_reduce(mdp_comm* comm, const mdp_tensor* from, const mdp_tensor* to, mdp_op op, mdp_stream stream,
                                  mdp_request** out);
MDP_API mdp_status mdp_reduce_scatter(mdp_comm* comm, const mdp_tensor* from, const mdp_tensor* to, mdp_op op, mdp_stream stream,
                                      mdp_request** out);
MDP_API mdp_status mdp_all_gather(mdp_comm* comm, const mdp_tensor* from, const mdp_tensor* to, mdp_stream stream, mdp_request** out);
MDP_API mdp_status mdp_all_to_all(mdp_comm* comm, const mdp_tensor* from, const mdp_tensor* to, mdp_stream stream, mdp_request** out);
MDP_API mdp_status mdp_broadcast(mdp_comm* comm, const mdp_tensor* tensor, int32_t root, mdp_stream stream, mdp_request** out);
MDP_API mdp_status mdp_barrier(mdp_comm* comm);

/* ── Grid ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

MDP_API mdp_status mdp_grid_create(mdp_comm* world, const mdp_grid_config* config, mdp_grid** out);
MDP_API mdp_status mdp_grid_coords(mdp_grid* grid, uint32_t axes, int32_t* index, int32_t* size);
MDP_API mdp_status mdp_grid_comm(mdp_grid* grid, uint32_t axes, mdp_comm** out);
MDP_API void mdp_grid_destroy(mdp_grid* grid);

/* ── Plan: pure, no communicator, nothing allocated but the answer ───────────────────────────────────────────────────────────── */

MDP_API mdp_status mdp_grid_groups_json(const mdp_grid_config* grid, int32_t world, uint32_t axes, char* json, size_t capacity,
                                        size_t* needed);
MDP_API mdp_status mdp_plan(const mdp_grid_config* grid, int32_t world, int32_t rank, const mdp_buffer_config* config,
                            const mdp_param* params, size_t count, mdp_plan_report* out);
MDP_API mdp_status mdp_plan_json(const mdp_grid_config* grid, int32_t world, const mdp_buffer_config* config, const mdp_param* params,
                                 size_t count, char* json, size_t capacity, size_t* needed);

/* ── Buffer ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

MDP_API mdp_status mdp_buffer_register(mdp_grid* grid, const mdp_buffer_config* config, const mdp_param* params, size_t count,
                                       mdp_buffer** out);
MDP_API mdp_status mdp_buffer_owned(mdp_buffer* buffer, mdp_range* ranges, size_t capacity, size_t* needed);
MDP_API mdp_status mdp_buffer_param_view(mdp_buffer* buffer, size_t param, mdp_tensor* out);
MDP_API mdp_status mdp_buffer_grad_view(mdp_buffer* buffer, size_t param, mdp_tensor* out);
MDP_API mdp_status mdp_buffer_to_dlpack(mdp_buffer* owner, const mdp_tensor* view, struct DLManagedTensorVersioned** out);
MDP_API mdp_status mdp_buffer_broadcast(mdp_buffer* buffer, int32_t root);
MDP_API mdp_status mdp_buffer_verify(mdp_buffer* buffer);
MDP_API mdp_status mdp_buffer_zero_grad(mdp_buffer* buffer, mdp_stream stream);
MDP_API mdp_status mdp_buffer_stats(mdp_buffer* buffer, mdp_stats_report* out);
MDP_API mdp_status mdp_buffer_bucket(mdp_buffer* buffer, size_t bucket, mdp_bucket_report* out);
MDP_API void mdp_buffer_destroy(mdp_buffer* buffer);

/* ── A step: parameters and gradients ────────────────────────────────────────────────────────────────────────────────────────── */

MDP_API mdp_status mdp_microbatch_begin(mdp_buffer* buffer, int32_t is_last);
MDP_API mdp_status mdp_param_wait(mdp_buffer* buffer, size_t param, mdp_stream consumer);
MDP_API mdp_status mdp_param_read(mdp_buffer* buffer, size_t param, const mdp_tensor* to, mdp_stream stream);
MDP_API mdp_status mdp_param_write(mdp_buffer* buffer, size_t param, const mdp_tensor* from, mdp_stream stream);
MDP_API mdp_status mdp_param_changed(mdp_buffer* buffer);
MDP_API mdp_status mdp_grad_put(mdp_buffer* buffer, size_t param, const mdp_tensor* grad, uint64_t flags, mdp_stream producer);
MDP_API mdp_status mdp_grad_ready(mdp_buffer* buffer, size_t param, mdp_stream producer);
MDP_API mdp_status mdp_grad_skip(mdp_buffer* buffer, size_t param);
MDP_API mdp_status mdp_grad_sync(mdp_buffer* buffer, mdp_stream consumer, mdp_request** out);

/* ── Optimizer ───────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

MDP_API mdp_status mdp_optimizer_create(mdp_buffer* buffer, const mdp_optimizer_config* config, mdp_optimizer** out);
MDP_API mdp_status mdp_optimizer_set_group(mdp_optimizer* optimizer, size_t group, const mdp_group* value);
MDP_API mdp_status mdp_optimizer_step(mdp_optimizer* optimizer, const mdp_step_config* config, mdp_step_report* report, mdp_request** out);
MDP_API mdp_status mdp_optimizer_state(mdp_optimizer* optimizer, size_t param, const char* name, mdp_tensor* out);
MDP_API void mdp_optimizer_destroy(mdp_optimizer* optimizer);

/* ── Request ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

MDP_API mdp_status mdp_request_test(mdp_request* request);
MDP_API mdp_status mdp_request_wait(mdp_request* request, uint64_t timeout_ns);
MDP_API void mdp_request_free(mdp_request* request);

#ifdef __cplusplus
}
#endif
#endif
