/* SPDX-License-Identifier: Apache-2.0
 *
 * megadp: data-parallel training for every language. The only public header; C99 to C++20.
 *
 * Conventions, said once
 *   status    Every call that can fail returns mdp_status: < 0 failed, 0 done, > 0 not yet. The sentence that explains a failure is read
 *             by mdp_last_error() on the same thread, before that thread's next megadp call; in programs whose tasks change threads
 *             (goroutines, virtual threads), fetch status and text within one native call. A failure that ranks cannot recover from
 *             (PEER, TIMEOUT, ABORTED, DESYNC in a collective, BACKEND) is kept in the communicator, mdp_comm_error_info(): from then on
 *             it is "lost" and every call that communicates or moves the step on fails with it. Calls that only look at local memory
 *             (views, owned ranges, coordinates, counters) go on working, so that what is left can be saved.
 *             docs/errors.md lists causes and remedies.
 *   structs   `struct_size` comes first and is sizeof the struct as the caller compiled it, in and out: the library reads and writes
 *             the smaller of the caller's size and its own. Structs have no holes and grow at the end only. In an array of structs
 *             the first element's struct_size is the stride, and every element carries the same. A larger struct than the library's
 *             is taken if the fields it does not know are zero, and refused as MDP_E_UNSUPPORTED otherwise. Reserved fields are 0.
 *   zero      is the default of every field. Where a caller may mean zero itself, zero is the default too, or a flag says "literally".
 *   enums     are fixed-width integers with written values; values are only ever appended. An unknown value or flag is refused.
 *   handles   are owned by the caller and reference-counted inside: a child keeps its parents alive, so they may be destroyed in any
 *             order. `out` is the last argument. Outputs are written on success only (`needed` also when a capacity is too small). A
 *             destroy or free accepts NULL, is local, never waits for another rank, may be called from any thread, and does nothing in
 *             a forked child. Any other call there with a handle of the parent's is MDP_E_STATE. Calls that take no handle work:
 *             plans, information, errors, and mdp_comm_create, except between nodes when the parent was so connected (MDP_E_STATE).
 *   local / collective   "Collective" calls must be made by every rank of the communicator, in the same order; they wait for the
 *             other ranks, at most for the communicator's timeout. All others are local and never wait for another rank.
 *   streams   On the host a stream is NULL: operands are ready when the call is made. `mdp_request **out` may be NULL: then the call
 *             returns when the work is done; otherwise it returns at once and the request reports the end. With CUDA a stream is a
 *             cudaStream_t of the rank's device, NULL its default stream: the call's work comes after what the caller has put there, and
 *             "returns when the work is done" becomes "returns when it is submitted; what the caller puts there later comes after it".
 *             Failures of such work are reported by a later call. Nothing waits for the device unless it is said.
 *   tensors   Shape and strides are counted in elements, strides may be negative. Data is aligned to its element size; it may be NULL in
 *             a tensor without elements. A tensor passed in is borrowed for the call only.
 *   order     What a communicator's ranks call on it they call in one order. Communicators, and the buffers registered on them, do not
 *             wait for one another: ranks may come to those in any order, and gradients may arrive in any order beside them.
 *   threads   One thread at a time per communicator, grid, buffer (with its optimizers); calls that make or split one of them, one at a
 *             time in a communicator's context (it, its splits, and all made from them). From any thread at any time: mdp_grad_put,
 *             mdp_grad_ready, mdp_grad_skip, mdp_param_wait, mdp_request_*, mdp_comm_abort, mdp_comm_error_info, every destroy and
 *             free, and what says so. A communicator has a thread of its own once a collective was called on it, a buffer two. The log
 *             callback runs inside a call of the user's, never inside a destroy, a free, mdp_grad_*, or a call that only asks for an
 *             error or a rank.
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

enum {                     /* mdp_comm_config.flags */
  MDP_COMM_SET_DEVICE = 1, /* device is meant literally, also 0                                                          */
  MDP_COMM_EXACT_SUMS = 2, /* on CUDA: sums in the order and precision of the host, so the same bits on every run and machine; slower,
                              with 32 MiB of scratch a group. Without it NCCL chooses the order                          */
  MDP_COMM_SOCKETS = 4     /* data of the host between nodes over sockets on which both sides prove that they know the job's secret, and not
                              over UCX, whose port anybody who reaches it can use to abort the rank. The same on all ranks. Whoever
                              starts the ranks chooses it by MEGADP_TRANSPORT=sockets; MEGADP_TRANSPORT=ucx beside the flag is INVALID */
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
  MDP_PLACEMENT_REPLICATED = 1, /* the same on all of them: counted once in the norm     */
  MDP_PLACEMENT_SHARDED = 2     /* each holds its own part: every part counts in the norm */
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
  MDP_MISSING_ZERO = 1,  /* this rank adds what its earlier microbatches brought, or zero    */
  MDP_MISSING_SKIP = 2   /* as mdp_grad_skip                                                 */
};

enum {                     /* mdp_param.flags */
  MDP_PARAM_FROZEN = 1,    /* not trained: the library keeps neither it nor a gradient; it only has a name and an index */
  MDP_PARAM_OWN_BUCKET = 2 /* gets a bucket to itself (tied embeddings). Ignored with ZERO_0                            */
};
enum {                                   /* mdp_buffer_config.flags */
  MDP_BUFFER_NO_OVERLAP = 1,             /* launch everything at mdp_grad_sync, in one bucket an arena                   */
  MDP_BUFFER_HIGH_BANDWIDTH_PADDING = 4, /* pad bucket ends to a multiple of 65536 elements as well                      */
  MDP_BUFFER_REFERENCE_BUCKETS = 8,      /* bucket_elements as Megatron-LM has it: max(40,000,000, 1,000,000 x dp x cp)  */
  MDP_BUFFER_IGNORE_MEMORY = 16          /* take memory also where the system says that there is too little. Of any rank */
};
enum {              /* mdp_grad_put */
  MDP_GRAD_ADD = 1, /* add to what is in the slot, also if it is the step's first                                   */
  MDP_GRAD_MORE = 2 /* more of the same use is coming: do not count it as ready yet                                 */
};
enum {                 /* mdp_group.flags */
  MDP_GROUP_SET_LR = 1 /* lr is meant literally, also 0 */
};
enum {                        /* mdp_optimizer_config.flags */
  MDP_OPTIMIZER_SET_BETAS = 1 /* beta1 and beta2 are meant literally, also 0 */
};
enum {                /* mdp_step_config.flags */
  MDP_STEP_SET_LR = 1 /* lr is meant literally, also 0 */
};
enum {                     /* mdp_step_report.flags */
  MDP_STEPPED_SKIPPED = 1, /* a gradient was not finite: nothing was changed, and the step not counted */
  MDP_STEPPED_CLIPPED = 2  /* the gradient was scaled down to max_grad_norm                            */
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

/* ── Structs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct {
  uint8_t bytes[128];
} mdp_unique_id; /* opaque; may be sent to other ranks by any means; holds a secret */

typedef struct { /* details of a failure; -1: not known or not about one */
  uint32_t struct_size;
  mdp_status status;
  int32_t rank;       /* the rank to blame, in the world (the communicator that was not split)     */
  int32_t bucket;     /* number of the bucket in launch order                                     */
  int64_t param;      /* index of the parameter at registration                                   */
  uint64_t operation; /* running number of the collective in its group, 0: none               */
  char text[1024];    /* UTF-8, NUL-terminated; cut between characters where it is too long   */
} mdp_error_info;

/* The functions of an mdp_bootstrap. start begins to gather: `mine` has `bytes` bytes, the same number on all ranks (a few KiB at most);
 * those of rank r are to be at byte r * bytes of `all`, on every rank. Both are the library's, and there until free returns; after that
 * nothing may be read or written there. *request, NULL before, is the caller's own to set. 0: begun; anything else: failed, nothing to
 * free. test: 0: in progress, 1: done, anything else: failed. It is called again and again, and must not block, or the timeout does not
 * hold. free is called exactly once for each start that returned 0, done or not: where it was not done, the gathering is to be given up. */
typedef int32_t (*mdp_allgather_start_fn)(void* context, const void* mine, size_t bytes, void* all, void** request);
typedef int32_t (*mdp_allgather_test_fn)(void* context, void* request);
typedef void (*mdp_allgather_free_fn)(void* context, void* request);

/* A way to gather bytes over all ranks that the caller has already (MPI_Iallgather, MPI_Test; a key-value store; a pipe to a parent), in
 * the place of a launcher, an id, an address and a port. Called inside mdp_comm_create alone, on its thread, at most twice, and not at all
 * for one rank; must not call megadp on this thread, throw or jump out. What it carries holds a secret: whoever reads it may join. Borrowed
 * for that call. */
typedef struct {
  uint32_t struct_size;
  uint32_t reserved; /* 0 */
  void* context;     /* handed to the functions; may be NULL */
  mdp_allgather_start_fn allgather_start;
  mdp_allgather_test_fn allgather_test;
  mdp_allgather_free_fn allgather_free;
} mdp_bootstrap;

typedef struct {
  uint32_t struct_size;
  mdp_backend backend;
  int32_t rank;         /* with an id or a bootstrap: this rank; from the environment: leave 0                           */
  int32_t nranks;       /* with an id or a bootstrap: how many ranks, at least 1; from the environment: 0, or what the launcher must say */
  int32_t device;       /* with CUDA: which of the devices this process sees; 0: this rank's number on its node, modulo their
                           number, unless MDP_COMM_SET_DEVICE; with the host backend 0                                    */
  int32_t host_threads; /* reserved: 0                                                                                   */
  uint64_t timeout_ns;  /* how long any collective waits for another rank; 0: five minutes                               */
  uint64_t flags;       /* MDP_COMM_*                                                                                    */
  const mdp_bootstrap* bootstrap; /* how the ranks meet; NULL: by the id, or what the launcher says. Without an id                 */
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
  uint64_t flags; /* MDP_PARAM_*                                                                                     */
} mdp_param;

typedef struct {
  uint32_t struct_size;
  mdp_dtype grad_dtype; /* F32 (default) or MDP_DTYPE_SAME                                                               */
  mdp_sharding sharding;
  mdp_missing missing;
  uint64_t bucket_elements; /* a bucket closes once it is at least this long; UINT64_MAX: one bucket an arena; 0: a tenth of the
                               arena, at least 8192, at most the reference's                                                 */
  uint64_t bucket_count;    /* instead of bucket_elements: all elements of this rank / this; not where ranks that share dense
                               parameters have different experts, whose buckets would differ (DESYNC)                        */
  uint64_t flags;           /* MDP_BUFFER_*                                                                                  */
} mdp_buffer_config;

typedef struct { /* memory of one rank, in bytes, before rounding each allocation up to a page */
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t param_bytes;        /* whole parameters, with padding                                       */
  uint64_t grad_bytes;         /* whole gradients, with padding                                        */
  uint64_t grad_shard_bytes;   /* reduced gradients kept apart: 0, they are reduced in place           */
  uint64_t master_bytes;       /* the owned pieces in fp32; 0 for f32 parameters                       */
  uint64_t state_bytes;        /* both moments of the owned pieces in fp32                             */
  uint64_t scratch_bytes;      /* scalars, step counts, what ranks tell each other at mdp_grad_sync, and 1 MiB + 4 KiB of memory shared
                                  by the ranks of a node for every group of ranks that registering makes (2 to 5)      */
  uint64_t padding_elements;   /* alignment gaps and bucket padding, over all arenas                   */
  uint64_t buckets;            /* over all arenas                                                      */
  uint64_t owned_elements;     /* of parameters, without padding                                       */
  uint64_t communicator_bytes; /* with MDP_BACKEND_CUDA, on the device, besides: an estimate of what NCCL takes for the communicators of
                                  training, 147 MiB each                                             */
} mdp_plan_report;

typedef struct { /* one owned piece of one parameter */
  uint32_t struct_size;
  uint32_t reserved;
  int64_t buffer;      /* arena: one per (parameter dtype, gradient dtype, class), in order of first registration */
  int64_t bucket;      /* number in launch order                                                               */
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
  double eps;              /* 0: 1e-8; otherwise 1e-37 to 1e37                                                 */
  double weight_decay;     /* when there are no groups; with groups 0, each has its own                           */
  double max_grad_norm;    /* gradients are scaled down to this global norm; 0: off                            */
  const mdp_group* groups; /* NULL: one group, with the values above; copied                                  */
  uint64_t ngroups;
  uint64_t flags;
} mdp_optimizer_config;

typedef struct {
  uint32_t struct_size;
  uint32_t reserved;
  double lr;         /* replaces the optimizer's from this step on; 0: unchanged, unless MDP_STEP_SET_LR           */
  double loss_scale; /* gradients are divided by it, 1e-37 to 1e37; 0: 1. When given, a non-finite gradient on any rank
                        makes all ranks skip the step                                                              */
  mdp_stream stream;
  uint64_t flags;
} mdp_step_config;

typedef struct {
  uint32_t struct_size;
  uint32_t reserved;
  double grad_norm;   /* L2 norm of the whole reduced gradient, over all ranks, divided by loss_scale, before clipping;
                         summed in float64                                                                       */
  double clip_factor; /* 1: not clipped                                                                          */
  double loss_scale;
  uint64_t step;  /* steps taken so far, skipped ones not counted                                            */
  uint64_t flags; /* MDP_STEPPED_*                                                                           */
} mdp_step_report;

typedef struct { /* sums since registration; times in nanoseconds */
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t comm_ns;              /* time that gradient and parameter collectives took, one after another          */
  uint64_t exposed_ns;           /* time callers spent waiting for them (sync, step, param_wait)                 */
  uint64_t bytes;                /* bytes of the buckets reduced and gathered                                    */
  uint64_t buckets;              /* buckets launched                                                             */
  uint64_t launched_in_backward; /* of these, before mdp_grad_sync was called                                    */
  uint64_t syncs;                /* calls of mdp_grad_sync that finished                                         */
  uint64_t host_syncs;           /* how often a call on this context made its thread wait for the device; 0 on the host */
} mdp_stats_report;

typedef struct { /* the last step's times of one bucket: CLOCK_MONOTONIC, nanoseconds; 0: has not happened. Buckets that go at once
                  * (MDP_BUFFER_NO_OVERLAP) have the begin and the end of all of them. */
  uint32_t struct_size;
  mdp_bucket_state state;
  uint64_t ready_ns;        /* its last gradient arrived                                                     */
  uint64_t reduce_begin_ns; /* taken as the work begins and ends                                             */
  uint64_t reduce_end_ns;
  uint64_t gather_begin_ns;
  uint64_t gather_end_ns;
  uint64_t sync_ns; /* mdp_grad_sync was called: the end of backward                                 */
} mdp_bucket_report;

/* level: 0 error, 1 warning, 2 info, 3 debug. `text` is NUL-terminated and borrowed for the call. */
typedef void (*mdp_log_fn)(void* user, int32_t level, const char* text, size_t length);

/* ── Library ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* major << 16 | minor << 8 | patch of the loaded library. Cannot fail; any thread. */
MDP_API uint32_t mdp_version(void);

/* "MDP_E_PEER" and so on; "unknown status" for other numbers. Static text, never NULL; any thread. */
MDP_API const char* mdp_status_name(mdp_status status);

/* The sentence of this thread's last failed call, "" when none has failed yet; calls that succeed or are pending leave it as it is.
 * UTF-8, at most 4095 bytes; valid until this thread's next megadp call. Any thread. */
MDP_API const char* mdp_last_error(void);

/* The same failure with its code and what it is about; `text` is cut to 1023 bytes, between characters. status is MDP_OK when no call
 * of this thread has failed yet. Any thread.
 * Errors: INVALID. */
MDP_API mdp_status mdp_last_error_info(mdp_error_info* out);

/* What this library is and what it sees, as one line of JSON: version, abi, build, backends and transport (with the reason where one is
 * not available), machine (cores, affinity, memory) and launch (launcher variables, and what mdp_comm_create would make of them).
 * Fields may be added in any release.
 * The protocol of all calls that answer with text: *needed becomes its size with the terminating NUL, even where the call then fails
 * because capacity is too small; nothing is written to json in that case. json NULL with capacity 0 asks for the size. needed may be
 * NULL where json is not. Any thread.
 * Errors: INVALID. */
MDP_API mdp_status mdp_info(char* json, size_t capacity, size_t* needed);

/* Sets the callback that log messages go to; NULL: errors and warnings go to stderr (the default), the rest is dropped. Messages are
 * queued where they arise and handed over at the end of the next ordinary call of any thread, by that thread, one at a time. When this
 * returns, the callback set before is not running and will not be called again (a callback may replace itself, that excepted). The
 * callback may call megadp; it must not throw or jump out. Any thread. */
MDP_API mdp_status mdp_log_set(mdp_log_fn fn, void* user);

/* ── Communicator ────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* A fresh name and secret under which ranks find each other, for one mdp_comm_create on each rank. Made by one rank (any) and carried
 * to the others by the caller (MPI, a file, a socket), kept from strangers: who has it may join. Between nodes, rank 0's address is
 * taken from the environment variable MEGADP_ROOT (host:port) where the id is made. Local, any thread.
 * Errors: INVALID (MEGADP_ROOT makes no sense), SYSTEM. */
MDP_API mdp_status mdp_unique_id_create(mdp_unique_id* out);

/* Joins the ranks of one job into a communicator, the world. id NULL: rank, number of ranks and where to meet come from the launcher's
 * environment (megadp run, torchrun, SLURM, Open MPI, MPICH); a single rank where no launcher is recognised. With an id, or with
 * config.bootstrap: from config. A bootstrap needs no address: between nodes, rank 0 listens at its first network interface, or where
 * MEGADP_ROOT says on rank 0, and tells the others.
 * config NULL: all defaults. Ranks may be processes or threads of one process, each with a communicator of its own. Several worlds may
 * exist side by side. Starts threads, which block all signals.
 * Collective over the ranks of the job; blocking, at most for the timeout. To be destroyed by mdp_comm_destroy.
 * Errors: INVALID (config; an environment that is partial, contradictory or unknown), UNSUPPORTED (backend), TIMEOUT (names the ranks
 * that did not come), PEER, DESYNC (also: the bootstrap gave ranks different bytes), BACKEND (it failed), CORRUPT (it changed bytes): what
 * a rank hears of another's bootstrap it returns too; STATE (ranks on several nodes that use UCX, in a process forked from one that had
 * such a communicator: UCX does not work there), SYSTEM, MEMORY. */
MDP_API mdp_status mdp_comm_create(const mdp_comm_config* config, const mdp_unique_id* id, mdp_comm** out);

/* Cuts a communicator: ranks that give the same color (>= 0) form a new one, ordered by key, then by rank in comm. *out is NULL where
 * color < 0. The parts share the context of comm, and so its failure. As MPI_Comm_split.
 * Collective over comm; blocking. Each part to be destroyed by mdp_comm_destroy.
 * Errors: INVALID, STATE (forked child), those of a lost communicator. */
MDP_API mdp_status mdp_comm_split(mdp_comm* comm, int32_t color, int32_t key, mdp_comm** out);

/* This process's (or thread's) rank, 0 to size - 1, and the number of ranks. -1 where comm is not a live communicator of this process;
 * mdp_last_error then says why. Local, any thread. */
MDP_API int32_t mdp_comm_rank(const mdp_comm* comm);
MDP_API int32_t mdp_comm_size(const mdp_comm* comm);

/* The failure that made this communicator's context unusable: the first one, on whatever call or rank it was noticed. status is MDP_OK
 * while there is none. It never goes away; such a context can only be destroyed. Local, any thread.
 * Errors: INVALID, STATE (forked child). */
MDP_API mdp_status mdp_comm_error_info(mdp_comm* comm, mdp_error_info* out);

/* A file descriptor for poll, epoll or an event loop: readable while a request of this context has finished that no mdp_request_test or
 * mdp_request_wait has seen finished. When it is readable, test the pending requests. Only requests made after the first call of this
 * count. The library owns it, drains it and closes it with the last handle of the context: never read or close it. Local.
 * Errors: INVALID, STATE (forked child), SYSTEM. */
MDP_API mdp_status mdp_comm_event_fd(mdp_comm* comm, int32_t* out);

/* Makes the context unusable on all ranks: pending and later calls end with MDP_E_ABORTED, naming this rank. For a rank that cannot go on
 * (an exception in the training loop) and would leave the others waiting. Does nothing after an earlier failure. Any thread, also while
 * another one is inside a call; does not block.
 * Errors: INVALID, STATE (forked child). */
MDP_API mdp_status mdp_comm_abort(mdp_comm* comm);

/* Drops this handle; the context ends with its last handle, and the other ranks are told that this rank has left. */
MDP_API void mdp_comm_destroy(mdp_comm* comm);

/* Collectives on the caller's arrays, n = number of ranks. All of them: dense and row-major, in the memory of the host or, with CUDA,
 * of the rank's device (alike on all ranks; arrays of the host go over the host's group of the same ranks), dtypes of `from` and `to`
 * equal, counts and dtypes equal on all ranks; shapes do not matter otherwise, and may be empty everywhere. `from` and `to` may be apart or
 * "in place" as said; the arrays (not the structs) stay alive and untouched until the call returns or its request has finished.
 * On the host, and with MDP_COMM_EXACT_SUMS, n ranks are summed as a balanced binary tree: the sum of the first p plus the sum of the
 * other n - p, each taken likewise, where p is the largest power of two below n. Sums are accumulated in fp32 (f64 in f64; i64 wraps
 * around, u8 stops at 255), averages divided once, then rounded once: the result depends neither on timing nor on where the ranks are. AVG
 * is not for i64 and u8; MAX and MIN of a NaN are a NaN.
 * Collective over comm; blocking when out is NULL.
 * Errors: INVALID, UNSUPPORTED (memory of another kind), STATE (forked child), DESYNC (a rank called something else), PEER, TIMEOUT,
 * ABORTED; after the last four the context is unusable. */

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
/* Returns when all ranks have called it, and all collectives this rank put on the communicator before have finished. */
MDP_API mdp_status mdp_barrier(mdp_comm* comm);

/* ── Grid ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Cuts a communicator into tensor, context, expert, data and pipeline parallel groups. Rank = sum of index * stride, the axes from left
 * to right in config.order varying from fastest to slowest. Two grids share the ranks: dense (dp = size / (tp cp pp)) and expert
 * (dp = size / (expert_tp ep pp)). config NULL: data parallelism only. Groups get their communicators when first needed.
 * Collective over world, with equal configurations; blocking. To be destroyed by mdp_grid_destroy.
 * Errors: INVALID (sizes that do not divide, order), DESYNC (configurations differ), STATE, those of a lost communicator. */
MDP_API mdp_status mdp_grid_create(mdp_comm* world, const mdp_grid_config* config, mdp_grid** out);

/* This rank's index in the group that the axes (MDP_AXIS_*) span together, and the group's size. Both are written. Local.
 * Errors: INVALID (no axis, unknown bits, EP on the dense grid, CP on the expert grid), STATE (forked child). */
MDP_API mdp_status mdp_grid_coords(mdp_grid* grid, uint32_t axes, int32_t* index, int32_t* size);

/* The communicator of that group; the ranks are in the order of config.order. Asking again gives another handle of the same one.
 * Collective over the whole world the first time; blocking. To be destroyed by mdp_comm_destroy.
 * Errors: as mdp_grid_coords, and those of a lost communicator. */
MDP_API mdp_status mdp_grid_comm(mdp_grid* grid, uint32_t axes, mdp_comm** out);

MDP_API void mdp_grid_destroy(mdp_grid* grid);

/* ── Plan: pure, no communicator, nothing allocated but the answer. Local, any thread ────────────────────────────────────────────── */

/* All groups that the axes span in a world of this size, as JSON: [[0,2],[1,3]]. Text protocol: see mdp_info.
 * Errors: INVALID, as mdp_grid_create and mdp_grid_coords. */
MDP_API mdp_status mdp_grid_groups_json(const mdp_grid_config* grid, int32_t world, uint32_t axes, char* json, size_t capacity,
                                        size_t* needed);

/* What mdp_buffer_register and mdp_optimizer_create would allocate on `rank`. grid and config may be NULL: all defaults.
 * Errors: INVALID, UNSUPPORTED, just as mdp_buffer_register. */
MDP_API mdp_status mdp_plan(const mdp_grid_config* grid, int32_t world, int32_t rank, const mdp_buffer_config* config,
                            const mdp_param* params, size_t count, mdp_plan_report* out);

/* The whole layout, as one line of JSON: arenas with the place of every parameter, the buckets, the ranges that each rank owns, and
 * the bytes of each rank. begin and end count elements in the arena. Text protocol: see mdp_info.
 * Errors: as mdp_plan. */
MDP_API mdp_status mdp_plan_json(const mdp_grid_config* grid, int32_t world, const mdp_buffer_config* config, const mdp_param* params,
                                 size_t count, char* json, size_t capacity, size_t* needed);

/* ── Buffer ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Lays out `count` parameters and their gradients, cuts them into buckets, allocates both (zeroed) and shares the memory with the other
 * ranks. The structs, names and shapes are copied. Register in the order of the forward pass: backward then fills the buckets one after
 * another. The registrations of all ranks of a data-parallel group are compared; where those of one group differ, every rank of the world
 * is told.
 * Refused as MEMORY before anything is taken where the ranks of a machine, or of a control group (cgroup) of it, need more of the host's
 * memory together than is left there: the kernel would end them by SIGKILL. Swap does not count. MDP_BUFFER_IGNORE_MEMORY, also of one rank
 * alone, goes ahead all the same, here and in mdp_optimizer_create. A device's memory is not looked at beforehand.
 * Collective over the grid's world; blocking. To be destroyed by mdp_buffer_destroy. What one rank has no memory for
 * no rank gets; nothing is left behind on failure.
 * Errors: INVALID (names the parameter; mdp_error_info.param), UNSUPPORTED, DESYNC (names the first difference and the two ranks), STATE,
 * MEMORY, SYSTEM, those of a lost communicator. */
MDP_API mdp_status mdp_buffer_register(mdp_grid* grid, const mdp_buffer_config* config, const mdp_param* params, size_t count,
                                       mdp_buffer** out);

/* The ranges of elements whose optimizer state this rank keeps, by arena, in order of position. *needed becomes their number. ranges may
 * be NULL when capacity is 0; otherwise ranges[0].struct_size says how long an element is, and is written to all. Local.
 * Errors: INVALID (also when capacity is too small; *needed is written then too), STATE (forked child). */
MDP_API mdp_status mdp_buffer_owned(mdp_buffer* buffer, mdp_range* ranges, size_t capacity, size_t* needed);

/* Library memory of one parameter or its gradient, valid until the last handle and DLPack tensor of the buffer is gone; the shape and
 * strides that out points to live as long. Write parameters only between a step and the next forward, and tell mdp_param_changed; write
 * gradients before mdp_grad_ready. A gradient is meaningful after mdp_grad_sync: with ZERO_0 all of it, with ZERO_1 the owned ranges;
 * until the step it may be written there again, which mdp_grad_changed says.
 * After a step with a request, wait for the parameter or the request before its gradient is written again. Over several microbatches
 * the framework itself adds into the view. Local.
 * Errors: INVALID, STATE (frozen parameters have no memory here; forked child). */
MDP_API mdp_status mdp_buffer_param_view(mdp_buffer* buffer, size_t param, mdp_tensor* out);
MDP_API mdp_status mdp_buffer_grad_view(mdp_buffer* buffer, size_t param, mdp_tensor* out);

/* A view, or a part of one, as a DLPack 1.0 managed tensor without copying. It keeps the memory alive; the consumer calls its deleter,
 * once, from any thread. Local.
 * Errors: INVALID (not memory of this buffer), STATE (forked child), MEMORY. */
MDP_API mdp_status mdp_buffer_to_dlpack(mdp_buffer* owner, const mdp_tensor* view, struct DLManagedTensorVersioned** out);

/* Copies all parameters from rank `root` of each data-parallel group (an index into the group, not the world; the dense and the expert
 * groups must have that many ranks) to its other ranks.
 * Collective over the grid's world; blocking. Errors: INVALID, STATE, those of a lost communicator. */
MDP_API mdp_status mdp_buffer_broadcast(mdp_buffer* buffer, int32_t root);

/* Compares all parameters, bit for bit, over each data-parallel group; all ranks of the world get the same answer.
 * Collective over the grid's world; blocking; slow: for checks.
 * Errors: DESYNC (names the first parameter that differs and two ranks), STATE, those of a lost communicator. */
MDP_API mdp_status mdp_buffer_verify(mdp_buffer* buffer);

/* Sets all gradients to zero and begins the step anew; what was put, ready or skipped is forgotten. Not needed between steps: the first
 * gradient of a step replaces what an earlier step left, unless a framework adds into the views itself. Whether
 * the microbatch is the last one stays as mdp_microbatch_begin said. Local; waits for the mdp_grad_put that other threads are inside of,
 * and for what is left of the last step, so at most for the timeout.
 * Errors: STATE (a bucket of this step has been launched, or a sync is pending), those of a lost communicator. */
MDP_API mdp_status mdp_buffer_zero_grad(mdp_buffer* buffer, mdp_stream stream);

/* Counters since registration, and the last step's times of one bucket (by number in launch order). Local.
 * Errors: INVALID, STATE (forked child). */
MDP_API mdp_status mdp_buffer_stats(mdp_buffer* buffer, mdp_stats_report* out);
MDP_API mdp_status mdp_buffer_bucket(mdp_buffer* buffer, size_t bucket, mdp_bucket_report* out);

/* Drops this handle. Optimizers and DLPack tensors made from the buffer keep its memory. */
MDP_API void mdp_buffer_destroy(mdp_buffer* buffer);

/* ── A step: parameters and gradients ────────────────────────────────────────────────────────────────────────────────────────────
 *
 *   for each microbatch: mdp_microbatch_begin (with one microbatch: not needed)
 *     forward    mdp_param_wait before a parameter is read
 *     backward   mdp_grad_put, or mdp_grad_ready where the gradient was written into the view; mdp_grad_skip where there is none
 *   mdp_grad_sync, mdp_optimizer_step
 *
 * A step begins with the first of these calls after the last mdp_optimizer_step. After a sync without a step (it failed, or the caller
 * has an optimizer of its own) it begins with mdp_microbatch_begin or mdp_buffer_zero_grad. Gradients of its microbatches and uses are
 * added up; the reduced gradient is the sum over ranks divided by the size of dp x cp. A bucket is launched during the last microbatch,
 * as soon as it and all buckets before it are full. */

/* Says whether the microbatch that begins is the last one of the step: only then do gradients become final. is_last: 0 or 1. Without
 * this call every step has one microbatch. Local; waits for the mdp_grad_put that other threads are inside of.
 * Errors: INVALID, STATE (gradients of the last microbatch have come already; a sync is pending), those of a lost communicator. */
MDP_API mdp_status mdp_microbatch_begin(mdp_buffer* buffer, int32_t is_last);

/* Returns when the parameter (SIZE_MAX: every parameter) holds its values after the last step. Local; waits for the gather of its bucket,
 * so at most for the timeout. Any thread.
 * Errors: INVALID, STATE, those of a lost communicator. */
MDP_API mdp_status mdp_param_wait(mdp_buffer* buffer, size_t param, mdp_stream consumer);

/* Copies a parameter out of, or into, the library's memory, casting between f32, bf16, f16 and f64 (rounded to nearest even); the shape
 * is the parameter's, the strides are free. Waits as mdp_param_wait does. What is written must be the same on all ranks of the
 * data-parallel group (or be followed by mdp_buffer_broadcast); the master of this parameter follows at the next step. Local.
 * Errors: INVALID, STATE (frozen), those of a lost communicator. */
MDP_API mdp_status mdp_param_read(mdp_buffer* buffer, size_t param, const mdp_tensor* to, mdp_stream stream);
MDP_API mdp_status mdp_param_write(mdp_buffer* buffer, size_t param, const mdp_tensor* from, mdp_stream stream);

/* To be called after parameters were written through views: the optimizer's fp32 masters take all parameters over at the next step, as
 * they are, rounded; mdp_param_write does so for one parameter only. Local.
 * Errors: STATE, those of a lost communicator. */
MDP_API mdp_status mdp_param_changed(mdp_buffer* buffer);

/* Copies a gradient into its slot and counts it as ready. The parameter's shape, any strides; f32, bf16, f16 or f64, cast to the
 * gradient's dtype. The first one of a step replaces what is in the slot (unless MDP_GRAD_ADD), later ones of the step are added to it.
 * MDP_GRAD_MORE: not ready yet, more of the same use is coming. The array may be reused when the call returns. Local; waits for the last
 * step's update of the same bucket to be finished. Any thread, several at a time for different parameters.
 * Errors: INVALID (shape), STATE (frozen; put or ready more often than uses_per_step; after mdp_grad_sync; skipped), those of a lost
 * communicator. */
MDP_API mdp_status mdp_grad_put(mdp_buffer* buffer, size_t param, const mdp_tensor* grad, uint64_t flags, mdp_stream producer);

/* The gradient was written into (or added to) its view; counts it as ready. Local, does not block. Any thread.
 * Errors: INVALID, STATE, as mdp_grad_put, and while another thread puts the same parameter. */
MDP_API mdp_status mdp_grad_ready(mdp_buffer* buffer, size_t param, mdp_stream producer);

/* This rank has no gradient of the parameter in this microbatch. Where no microbatch of the step brought one, this rank adds zero; and
 * where that is so on all ranks, the optimizer leaves the parameter and its state alone. Local, does not block. Any thread.
 * Errors: INVALID, STATE, as mdp_grad_ready. */
MDP_API mdp_status mdp_grad_skip(mdp_buffer* buffer, size_t param);

/* Ends backward: launches what is left, waits until every bucket is reduced, and agrees with all ranks on what was missing or skipped.
 * A gradient that another thread is putting meanwhile counts, or its put fails. Calling it again before the step gives the same outcome,
 * and a request of its own. On failure no rank can step; mdp_microbatch_begin or
 * mdp_buffer_zero_grad begins anew.
 * Collective over the grid's world; blocking when out is NULL.
 * Errors: STATE (a parameter never became ready: names it and the rank, on all ranks; not in the last microbatch), those of a lost
 * communicator. */
MDP_API mdp_status mdp_grad_sync(mdp_buffer* buffer, mdp_stream consumer, mdp_request** out);

/* The three calls below are for between mdp_grad_sync and mdp_optimizer_step: STATE before the sync has finished, when it failed, and after
 * the step. `params` lists `count` parameters by their index; NULL with count 0: all of them; with count 0 otherwise: none. */

/* The L2 norm of the reduced gradients of these parameters over the whole model, summed in float64 as mdp_optimizer_step sums it: every
 * element counts once in the world. A gradient that is not finite makes it infinite or NaN, on all ranks, and the status stays OK. It is
 * not divided by a loss scale. Collective over the grid's world, with the same list on ranks that share parameters; blocking. Waits for a
 * sync that is pending. Errors: INVALID (a parameter that is frozen, out of range, or listed twice), STATE, those of a lost communicator.
 */
MDP_API mdp_status mdp_grad_norm(mdp_buffer* buffer, const size_t* params, size_t count, double* norm);

/* Multiplies the reduced gradients of these parameters by factor, in place: with ZERO_0 all of a gradient, with ZERO_1 what this rank owns.
 * The factor is rounded to f32, the product computed in f32 and rounded to the gradient's dtype. It is what mdp_buffer_grad_view shows and
 * mdp_optimizer_step uses from then on. With f32 gradients, mdp_grad_norm, then mdp_grad_scale by min(1, max / (norm + 1e-6)), then a
 * step without clipping gives the bits that a step with max_grad_norm = max gives.
 * Local; to be called alike on all ranks. With CUDA it waits until what was submitted before it is on the device, at most for the timeout.
 * Errors: INVALID (as mdp_grad_norm; a factor that is not finite, or not as an f32), STATE, those of a lost communicator. */
MDP_API mdp_status mdp_grad_scale(mdp_buffer* buffer, const size_t* params, size_t count, double factor, mdp_stream stream);

/* To be called after reduced gradients were written through views: what later calls on the buffer do with them comes after the producer's
 * work. With ZERO_1 only what this rank owns counts. Local.
 * Errors: INVALID, STATE, those of a lost communicator. */
MDP_API mdp_status mdp_grad_changed(mdp_buffer* buffer, mdp_stream producer);

/* ── Optimizer ───────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* AdamW (Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019, algorithm 2) over the owned ranges: fp32 masters (none for
 * f32 parameters, which are their own) and two fp32 moments, starting at zero. With gradient g, group values lr and wd, and t the number of
 * steps that the parameter has taken part in (mdp_optimizer_steps):
 *   m = beta1 m + (1 - beta1) g        v = beta2 v + (1 - beta2) g^2
 *   w = w - lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + wd w)
 * Clipping: g is multiplied by max_grad_norm / (norm + 1e-6) where that is below 1. config NULL: all defaults.
 * A buffer may have several optimizers: what one of them changed, the masters of the others take over at their next step, rounded.
 * Refused as MEMORY before anything is taken where too little is left, as mdp_buffer_register.
 * Collective over the grid's world, with equal configurations; blocking; what fails on one rank fails on all. To be destroyed by
 * mdp_optimizer_destroy.
 * Errors: INVALID (a value out of range; a parameter's group that is not there), DESYNC, STATE, MEMORY, those of a lost communicator. */
MDP_API mdp_status mdp_optimizer_create(mdp_buffer* buffer, const mdp_optimizer_config* config, mdp_optimizer** out);

/* Replaces the values of one parameter group from the next step on; to be called alike on all ranks. Local.
 * Errors: INVALID, STATE, those of a lost communicator. */
MDP_API mdp_status mdp_optimizer_set_group(mdp_optimizer* optimizer, size_t group, const mdp_group* value);

/* Takes one step with the gradients that mdp_grad_sync reduced: norm and finite flag over all ranks, then bucket by bucket clip, update,
 * cast, and gather of the new parameters. config NULL: all defaults; report NULL: not wanted. A non-finite gradient skips the step when
 * config.loss_scale was given (MDP_STEPPED_SKIPPED), and is MDP_E_NUMERIC otherwise (a call without a request names the parameter and
 * element on the rank that owns it); either way nothing has changed on any rank.
 * Collective over the grid's world. Without out: returns when all parameters are whole. With out: returns once the report is known (at
 * once without report) while parameters are still gathered; mdp_param_wait or the request wait for them. With CUDA a step without report
 * does not wait for its own work; that its gradient was not finite is then the outcome of the request, or without one of the next step,
 * which waits for that and is not taken, on all ranks.
 * Errors: INVALID, STATE (no finished mdp_grad_sync, or a failed one), NUMERIC, those of a lost communicator. */
MDP_API mdp_status mdp_optimizer_step(mdp_optimizer* optimizer, const mdp_step_config* config, mdp_step_report* report, mdp_request** out);

/* The owned slice of one parameter's "master", "exp_avg" or "exp_avg_sq": f32, one dimension; where it begins in the flattened parameter
 * is mdp_range.param_begin. Empty (data NULL) where this rank owns nothing of it. Library memory, valid until the optimizer is destroyed;
 * it may be written between steps, and before the first. A "master" is first brought up to its parameter where that was written since the
 * last step, and holds what is written into it until the parameter is written again. Waits for the last step. Local.
 * Errors: INVALID, STATE (frozen; forked child), those of a lost communicator. */
MDP_API mdp_status mdp_optimizer_state(mdp_optimizer* optimizer, size_t param, const char* name, mdp_tensor* out);

/* How many steps the parameter has taken part in: not counted are skipped ones (MDP_STEPPED_SKIPPED, NUMERIC), and those for which all
 * ranks had skipped the parameter. Waits for the last step. Local.
 * Errors: INVALID, STATE (frozen; forked child), those of a lost communicator. */
MDP_API mdp_status mdp_optimizer_steps(mdp_optimizer* optimizer, size_t param, uint64_t* steps);

MDP_API void mdp_optimizer_destroy(mdp_optimizer* optimizer);

/* ── Request. Local, any thread ──────────────────────────────────────────────────────────────────────────────────────────────── */

/* MDP_PENDING, or how the operation ended; asking again gives the same. mdp_request_wait returns MDP_PENDING at the timeout (UINT64_MAX:
 * never) and may be entered again and again at little cost.
 * Errors: INVALID, STATE (forked child), and those of the operation. */
MDP_API mdp_status mdp_request_test(mdp_request* request);
MDP_API mdp_status mdp_request_wait(mdp_request* request, uint64_t timeout_ns);

/* Drops the request, finished or not; the operation goes on, and the caller's arrays are still its own until it has finished. */
MDP_API void mdp_request_free(mdp_request* request);

#ifdef __cplusplus
}
#endif
#endif
