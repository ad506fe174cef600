/* SPDX-License-Identifier: Apache-2.0
 *
 * Layers and arrays cut over ranks: a part of megadp.h, which includes it. */
#ifndef MEGADP_LAYERS_H
#define MEGADP_LAYERS_H

#include "megadp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ── Tensor and sequence parallelism ─────────────────────────────────────────────────────────────────────────────────────────────
 *
 * Halves of operators for an autodiff to wrap (docs/tensor-parallel.md). Arrays lie in the memory of comm's backend, with any strides;
 * outputs do not overlap inputs. Collective over comm; blocking. */

typedef struct mdp_tp_linear mdp_tp_linear; /* a linear layer cut over the ranks of a communicator */
typedef struct mdp_tp_saved mdp_tp_saved;   /* what the backward of one of its forwards needs      */

typedef uint32_t mdp_tp_region; /* of a tensor, replicated or cut along a dimension over the ranks */
enum {
  MDP_TP_REGION_UNSET = 0,
  MDP_TP_COPY = 1,           /* f */
  MDP_TP_REDUCE = 2,         /* g: the sum */
  MDP_TP_SCATTER = 3,        /* replicated to cut */
  MDP_TP_GATHER = 4,         /* cut to replicated */
  MDP_TP_REDUCE_SCATTER = 5, /* the own part of the sum */
  MDP_TP_EXCHANGE = 6        /* cut along dim to cut along to_dim: all-to-all */
};

typedef uint32_t mdp_tp_grad; /* what comes back of something replicated */
enum {
  MDP_TP_GRAD_UNSET = 0,
  MDP_TP_GRAD_PARTIAL = 1, /* a part on each rank: summed */
  MDP_TP_GRAD_REPLICATED = 2
};

typedef uint32_t mdp_tp_split; /* of W, [out_features, in_features] */
enum {
  MDP_TP_SPLIT_UNSET = 0,
  MDP_TP_COLUMN = 1, /* cuts out_features */
  MDP_TP_ROW = 2     /* cuts in_features */
};
enum { /* mdp_tp_linear_config.flags */
  MDP_TP_LINEAR_BIAS = 1,
  MDP_TP_LINEAR_TRANSPOSED = 2,       /* the weight is [in_features, out_features] */
  MDP_TP_LINEAR_SEQUENCE = 4,         /* the input of COLUMN, the output of ROW is cut along its first dimension */
  MDP_TP_LINEAR_GATHER_OUTPUT = 8,    /* of COLUMN: whole */
  MDP_TP_LINEAR_WHOLE_INPUT = 16,     /* of ROW */
  MDP_TP_LINEAR_CHECK_REPLICATED = 32 /* compares operands over ranks: for debugging */
};
enum { /* mdp_tp_region_config.flags */
  MDP_TP_REGION_CHECK_REPLICATED = 1
};
enum {                           /* mdp_tp_embedding_config.flags */
  MDP_TP_EMBEDDING_SEQUENCE = 1, /* the output is cut along its first dimension */
  MDP_TP_EMBEDDING_CHECK_REPLICATED = 2
};
enum {                             /* mdp_tp_cross_entropy_config.flags */
  MDP_TP_CROSS_ENTROPY_IGNORE = 1, /* ignore_index is meant */
  MDP_TP_CROSS_ENTROPY_CHECK_REPLICATED = 2
};

typedef struct {
  uint32_t struct_size;
  mdp_tp_region region;
  mdp_tp_grad grad; /* of COPY, REDUCE and GATHER */
  int32_t dim;      /* cut over the ranks; of EXCHANGE in the input */
  int32_t to_dim;   /* of EXCHANGE: in the output */
  uint32_t reserved;
  const uint64_t* parts;    /* each rank's size along dim; NULL: equal */
  const uint64_t* to_parts; /* along to_dim */
  uint64_t flags;           /* MDP_TP_REGION_* */
} mdp_tp_region_config;

typedef struct { /* the same on all ranks */
  uint32_t struct_size;
  mdp_tp_split split;
  int64_t in_features, out_features; /* of the whole layer */
  const int64_t* blocks;             /* NULL, or the sizes of what is fused along the cut dimension (q, k, v): each is cut by itself */
  uint64_t block_count;
  mdp_buffer* buffer; /* NULL: weight and bias are the caller's arrays */
  uint64_t weight;    /* parameter of the buffer */
  uint64_t bias;      /* with LINEAR_BIAS */
  mdp_dtype dtype;    /* F32 (default) or BF16 */
  mdp_tp_grad grad;   /* of ROW without SEQUENCE, and GATHER_OUTPUT */
  uint64_t flags;     /* MDP_TP_LINEAR_* */
} mdp_tp_linear_config;

typedef struct { /* the same on all ranks */
  uint32_t struct_size;
  mdp_tp_grad grad; /* of the output without SEQUENCE */
  int64_t rows;     /* of the whole table */
  uint64_t flags;   /* MDP_TP_EMBEDDING_* */
} mdp_tp_embedding_config;

typedef struct { /* the same on all ranks */
  uint32_t struct_size;
  uint32_t reserved;
  int64_t classes;        /* 0: as many as all ranks have columns; those beyond are padding and do not count */
  int64_t ignore_index;   /* with CROSS_ENTROPY_IGNORE: a target without loss and gradient */
  double label_smoothing; /* the target has probability 1 - label_smoothing, each other class label_smoothing / (classes - 1) */
  double z_loss;          /* adds z_loss * log(sum of exp(logits))^2 */
  uint64_t flags;         /* MDP_TP_CROSS_ENTROPY_* */
} mdp_tp_cross_entropy_config;

/* to = the operator of `from`: its shape, with a part's size for the whole's or the other way round. Errors: INVALID (region, shapes,
 * sizes that do not divide; what CHECK_REPLICATED finds). */
MDP_API mdp_status mdp_tp_region_fwd(mdp_comm* comm, const mdp_tp_region_config* config, const mdp_tensor* from, const mdp_tensor* to,
                                     mdp_stream stream);
/* From the gradient of the output that of the input, `to`. */
MDP_API mdp_status mdp_tp_region_bwd(mdp_comm* comm, const mdp_tp_region_config* config, const mdp_tensor* from, const mdp_tensor* to,
                                     mdp_stream stream);

/* A linear layer cut over comm. Parameters of config.buffer are each rank's parts, placed SHARDED over the same ranks (the bias of ROW:
 * REPLICATED, with SEQUENCE PARTIAL_SUM); frozen ones are arrays. Errors: INVALID (sizes that do not divide; a parameter), UNSUPPORTED (no
 * library for products), DESYNC. */
MDP_API mdp_status mdp_tp_linear_create(mdp_comm* comm, const mdp_tp_linear_config* config, mdp_tp_linear** out);

/* output = input W^T + bias. Features are the last dimension, the sequence is the first. weight, bias: NULL for parameters, which it waits
 * for. Without `saved` the caller keeps the input for backward; *saved is a copy of it, for one. */
MDP_API mdp_status mdp_tp_linear_fwd(mdp_tp_linear* linear, const mdp_tensor* input, const mdp_tensor* weight, const mdp_tensor* bias,
                                     const mdp_tensor* output, mdp_stream stream, mdp_tp_saved** saved);

/* Give `saved` or `input`; neither if the weight needs no gradient. What is NULL is not computed, but gradients of parameters always: they
 * are written where they belong and counted as ready. MDP_GRAD_ADD adds to the arrays of weight and bias; on a device a product may be
 * rounded to BF16 before it is added to BF16, by cuBLASLt. Errors: STATE (saved was used, or is another layer's; as
 * mdp_grad_acquire). */
MDP_API mdp_status mdp_tp_linear_bwd(mdp_tp_linear* linear, mdp_tp_saved* saved, const mdp_tensor* input, const mdp_tensor* weight,
                                     const mdp_tensor* grad_output, const mdp_tensor* grad_input, const mdp_tensor* grad_weight,
                                     const mdp_tensor* grad_bias, uint64_t flags, mdp_stream stream);

MDP_API void mdp_tp_saved_free(mdp_tp_saved* saved);
MDP_API void mdp_tp_linear_destroy(mdp_tp_linear* linear);

/* output = rows `ids` (I64, any shape) of a table cut by rows over comm, of which weight, [rows / size, features], is this rank's part.
 * Errors: INVALID (rows that do not divide; on the host, an id that is not in the table: on a device its row is NaN). */
MDP_API mdp_status mdp_tp_embedding_fwd(mdp_comm* comm, const mdp_tp_embedding_config* config, const mdp_tensor* ids,
                                        const mdp_tensor* weight, const mdp_tensor* output, mdp_stream stream);
/* Each row is summed in f32 in the order of ids; zeros where none came. MDP_GRAD_ADD adds to grad_weight, which may be what
 * mdp_grad_acquire lends. */
MDP_API mdp_status mdp_tp_embedding_bwd(mdp_comm* comm, const mdp_tp_embedding_config* config, const mdp_tensor* ids,
                                        const mdp_tensor* grad_output, const mdp_tensor* grad_weight, uint64_t flags, mdp_stream stream);

/* losses (F32, as targets) of logits, [.., classes of this rank], the same number on each, and targets, I64: classes of the whole. All
 * ranks get the same losses. saved: F32, [.., 2], for backward; or NULL. One collective of 16 bytes a token and rank. Errors: INVALID (as
 * above: NaN losses on a device), DESYNC. */
MDP_API mdp_status mdp_tp_cross_entropy_fwd(mdp_comm* comm, const mdp_tp_cross_entropy_config* config, const mdp_tensor* logits,
                                            const mdp_tensor* targets, const mdp_tensor* losses, const mdp_tensor* saved,
                                            mdp_stream stream);
/* grad_logits may be logits itself, which is otherwise left as it is. Any number of times. Local. */
MDP_API mdp_status mdp_tp_cross_entropy_bwd(mdp_comm* comm, const mdp_tp_cross_entropy_config* config, const mdp_tensor* logits,
                                            const mdp_tensor* targets, const mdp_tensor* saved, const mdp_tensor* grad_losses,
                                            const mdp_tensor* grad_logits, mdp_stream stream);

/* ── Spatial parallelism ─────────────────────────────────────────────────────────────────────────────────────────────────────────
 *
 * Arrays cut over a grid of ranks, with a halo of what the neighbours have (docs/spatial-parallelism.md). */

typedef struct mdp_halo mdp_halo; /* the edges of arrays that are cut over a grid of ranks */

typedef uint32_t mdp_edge; /* what is beyond an end of the whole */
enum {
  MDP_EDGE_KEEP = 0, /* what the caller puts there */
  MDP_EDGE_ZERO = 1,
  MDP_EDGE_PERIODIC = 2,
  MDP_EDGE_REFLECT = 3 /* mirrored at the outermost element, which is not repeated */
};
enum {               /* mdp_halo_config.flags */
  MDP_HALO_FACES = 1 /* no edges and corners: for star-shaped stencils */
};
enum { /* mdp_halo_start */
  MDP_HALO_BACKWARD = 1
};

typedef struct { /* the same on all ranks, but for shape */
  uint32_t struct_size;
  mdp_dtype dtype;          /* any; DEFAULT: F32 */
  int32_t ndim;             /* 1 to 16 */
  uint32_t fields;          /* arrays at a time; 0: 1 */
  const int64_t* grid;      /* numbers of ranks, 1: not cut; their product is comm's size, the last varies fastest */
  const int64_t* shape;     /* this rank's part, without halo */
  const int64_t* low;       /* width of the halo before it; NULL: 0 */
  const int64_t* high;      /* behind it */
  const mdp_edge* edges;    /* of each dimension; NULL: KEEP */
  uint64_t flags;           /* MDP_HALO_FACES */
  uint64_t arrays;          /* of the library's: mdp_halo_array */
  const int64_t* staggered; /* by field: of each dimension, whether it is one longer; NULL: none */
} mdp_halo_config;

typedef struct { /* one dimension that is convolved or pooled */
  uint32_t struct_size;
  uint32_t reserved;
  int64_t kernel, stride, dilation;  /* 0: 1 */
  int64_t padding_low, padding_high; /* zeros before and behind the whole input */
} mdp_conv_config;

typedef struct { /* of one rank */
  uint32_t struct_size;
  uint32_t reserved;
  int64_t low, high;                 /* of the halo: the same on all ranks */
  int64_t output_begin, output_size; /* what this rank computes */
  int64_t first;                     /* element of the padded part at which the first output's window begins */
  int64_t inside_begin, inside_size; /* outputs of it that need no halo */
  int64_t whole_output;
} mdp_conv_part;

/* Prepares exchanges, on a channel of their own; takes twice the memory of what is sent. Halos may be wider than parts.
 * Collective over comm; blocking. Errors: INVALID (grid not of comm's size; parts that do not fit; reflected halo as wide as the whole),
 * DESYNC, MEMORY. */
MDP_API mdp_status mdp_halo_create(mdp_comm* comm, const mdp_halo_config* config, mdp_halo** out);

/* Sends off what neighbours need of `fields`, padded arrays: part and halo. Until mdp_halo_finish only the inside may be read. Forward,
 * the halo becomes what its owners have. BACKWARD, the adjoint: it is added to where it came from, in the order of ranks, and becomes 0;
 * KEEP stays. Collective over comm, but waits for neighbours alone, two exchanges behind. Errors: INVALID, STATE. */
MDP_API mdp_status mdp_halo_start(mdp_halo* halo, const mdp_tensor* fields, size_t count, uint64_t flags, mdp_stream stream);
/* Waits for neighbours, and places what they sent. With config.arrays, halos in flight in one order on all ranks. Errors: STATE (not
 * started), DESYNC (one went the other way; on devices, within nodes). */
MDP_API mdp_status mdp_halo_finish(mdp_halo* halo, mdp_stream stream);

/* Padded array `index` of config.arrays, shaped as field index % fields, zero at first, while halo lives. Neighbours on the node read
 * from it. Local. */
MDP_API mdp_status mdp_halo_array(mdp_halo* halo, uint64_t index, mdp_tensor* out);

/* Of each dimension this rank's place in the grid, where its part begins, and the whole's size; or NULL. Local. */
MDP_API mdp_status mdp_halo_place(const mdp_halo* halo, int64_t* coords, int64_t* begins, int64_t* whole);

MDP_API void mdp_halo_destroy(mdp_halo* halo);

/* How an input, cut along one dimension into `count` parts, is convolved or pooled: each output by the rank that has the element at output
 * * stride, by the last one beyond. Local. Errors: INVALID (a window longer than the padded input). */
MDP_API mdp_status mdp_conv_split(const mdp_conv_config* config, const int64_t* parts, size_t count, int32_t part, mdp_conv_part* out);

/* ── Context parallelism ─────────────────────────────────────────────────────────────────────────────────────────────────────────
 *
 * Attention over a sequence that is cut over the ranks of comm, dimension 1 of [batch, sequence, heads, head_dim]
 * (docs/context-parallelism.md). The attention of a block is the caller's function. k and v may have fewer heads than q. Arrays as in
 * tensor parallelism: F32, BF16 or F16, all of one type; lse is F32. Collective over comm; blocking. */

typedef uint32_t mdp_cp_form; /* what moves */
enum {
  MDP_CP_AUTO = 0,      /* what sends less */
  MDP_CP_RING = 1,      /* k and v, while a block is computed */
  MDP_CP_ALL_TO_ALL = 2 /* each rank gets the whole sequence of some heads */
};
typedef uint32_t mdp_cp_mask;
enum {
  MDP_CP_MASK_NONE = 0,
  MDP_CP_MASK_CAUSAL = 1
};
enum {              /* mdp_cp_config.flags */
  MDP_CP_CAUSAL = 1 /* cut zig-zag, in twice as many chunks as ranks */
};

typedef struct { /* the same on all ranks */
  uint32_t struct_size;
  mdp_cp_form form;
  const int64_t* bounds; /* NULL, or of packed sequences 0 and where each ends */
  uint64_t bound_count;  /* sequences + 1 */
  uint64_t flags;        /* MDP_CP_* */
} mdp_cp_config;

typedef struct { /* one block; arrays are [batch, positions, heads, head_dim], lse without the last */
  uint32_t struct_size;
  mdp_cp_mask mask;
  int64_t q_begin, k_begin, head_begin; /* in the whole */
  const mdp_tensor* q;
  const mdp_tensor* k;
  const mdp_tensor* v;
  const mdp_tensor* out; /* F32, to be written, as lse; with grad_out: given, of all keys, q's type */
  const mdp_tensor* lse;
  const mdp_tensor* grad_out; /* NULL: forward */
  const mdp_tensor* grad_q;   /* F32, to be written: this block's part */
  const mdp_tensor* grad_k;
  const mdp_tensor* grad_v;
  const int64_t* q_bounds; /* packed: where sequences end in q, in k */
  const int64_t* k_bounds;
  uint64_t bound_count;
  mdp_stream stream;
} mdp_cp_block;
/* 0: computed. lse: natural, -infinity without a key. As mdp_update_fn otherwise. */
typedef int32_t (*mdp_cp_attention_fn)(void* user, const mdp_cp_block* block);

/* The positions of a rank's part: [ranges[0], ranges[1]), then [ranges[2], ranges[3]), which may be empty. Local, any thread. Errors:
 * INVALID (sequence does not divide). */
MDP_API mdp_status mdp_cp_part(const mdp_cp_config* config, int32_t size, int32_t rank, int64_t sequence, int64_t* ranges);

/* out and lse, [batch, sequence, heads], from each rank's part of q, k and v. fn is called for each block with a key that a query may see;
 * parts are merged in f32, in one order. Errors, on all ranks: INVALID, DESYNC, ABORTED (fn did not return 0; the communicator stays). */
MDP_API mdp_status mdp_cp_attention_fwd(mdp_comm* comm, const mdp_cp_config* config, mdp_cp_attention_fn fn, void* user,
                                        const mdp_tensor* q, const mdp_tensor* k, const mdp_tensor* v, const mdp_tensor* out,
                                        const mdp_tensor* lse, mdp_stream stream);
MDP_API mdp_status mdp_cp_attention_bwd(mdp_comm* comm, const mdp_cp_config* config, mdp_cp_attention_fn fn, void* user,
                                        const mdp_tensor* q, const mdp_tensor* k, const mdp_tensor* v, const mdp_tensor* out,
                                        const mdp_tensor* lse, const mdp_tensor* grad_out, const mdp_tensor* grad_q,
                                        const mdp_tensor* grad_k, const mdp_tensor* grad_v, mdp_stream stream);

#ifdef __cplusplus
}
#endif
#endif
