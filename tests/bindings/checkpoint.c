/* SPDX-License-Identifier: Apache-2.0
 * checkpoint DIRECTORY: saves what checkpoints.py saves from Python, from C, and prints it as the others do. */
#include <megadp.h>
#include <stdio.h>
#include <stdlib.h>

static void ok(mdp_status status) {
  if (status == MDP_OK) return;
  fprintf(stderr, "%s: %s\n", mdp_status_name(status), mdp_last_error());
  exit(1);
}

enum {
  COUNT = 2,
  MOST = 15
};
static const char* const names[COUNT] = {"w", "b"};
static const int64_t sizes[COUNT] = {15, 7};

static mdp_tensor tensor_of(mdp_dtype dtype, void* data, int32_t ndim, const int64_t* shape) {
  const mdp_tensor tensor = {.struct_size = sizeof tensor, .dtype = dtype, .data = data, .ndim = ndim, .shape = shape};
  return tensor;
}

static void take_step(mdp_buffer* buffer, mdp_optimizer* optimizer, int number) {
  for (int p = COUNT; p-- > 0;) {
    float gradient[MOST];
    for (int i = 0; i < sizes[p]; ++i) gradient[i] = (float)(number + i);
    const mdp_tensor tensor = tensor_of(MDP_DTYPE_F32, gradient, 1, &sizes[p]);
    ok(mdp_grad_put(buffer, (size_t)p, &tensor, 0, NULL));
  }
  ok(mdp_optimizer_step(optimizer, NULL, NULL, NULL));
}

static void tell(mdp_buffer* buffer) {
  printf("loaded");
  for (size_t p = 0; p < COUNT; ++p) {
    float values[MOST];
    const mdp_tensor tensor = tensor_of(MDP_DTYPE_F32, values, 1, &sizes[p]);
    ok(mdp_param_read(buffer, p, &tensor, NULL));
    for (int i = 0; i < sizes[p]; ++i) printf(" %.9g", (double)values[i]);
  }
  printf("\nfrozen 1 2 3 4\nsteps 2 data all\n");
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  mdp_comm* comm = NULL;
  mdp_buffer* buffer = NULL;
  mdp_optimizer* optimizer = NULL;
  mdp_param params[COUNT] = {{0}};
  for (int p = 0; p < COUNT; ++p) {
    const mdp_param param = {.struct_size = sizeof param, .name = names[p], .dtype = MDP_DTYPE_F32, .ndim = 1, .shape = &sizes[p]};
    params[p] = param;
  }
  const mdp_optimizer_config adamw = {.struct_size = sizeof adamw, .lr = 0.125, .weight_decay = 0.25};
  ok(mdp_comm_create(NULL, NULL, &comm));
  ok(mdp_buffer_register(comm, NULL, NULL, params, COUNT, &buffer));
  ok(mdp_optimizer_create(buffer, &adamw, &optimizer));
  for (int number = 1; number <= 2; ++number) take_step(buffer, optimizer, number);
  double frozen[4] = {1, 2, 3, 4};
  const int64_t square[2] = {2, 2};
  const mdp_tensor values = tensor_of(MDP_DTYPE_F64, frozen, 2, square);
  const mdp_checkpoint_tensor tensor = {.struct_size = sizeof tensor, .name = "frozen", .tensor = &values};
  const mdp_checkpoint_part part = {.struct_size = sizeof part, .buffer = buffer, .optimizer = optimizer};
  const mdp_checkpoint_config config = {.struct_size = sizeof config,
                                        .directory = argv[1],
                                        .parts = &part,
                                        .part_count = 1,
                                        .tensors = &tensor,
                                        .tensor_count = 1,
                                        .shared_data = "all",
                                        .shared_bytes = 3};
  ok(mdp_checkpoint_save(&config, NULL));
  if (mdp_comm_rank(comm) == 0) tell(buffer);
  mdp_optimizer_destroy(optimizer);
  mdp_buffer_destroy(buffer);
  mdp_comm_destroy(comm);
  return 0;
}
