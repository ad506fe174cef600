/* SPDX-License-Identifier: Apache-2.0
 * Somebody else's program, built against an installed megadp and nothing else: one rank, one parameter, one step. */
#include <megadp.h>
#include <stdio.h>
#include <string.h>

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, mdp_last_error());
  return 1;
}

int main(void) {
  const int64_t shape[2] = {3, 4};
  mdp_comm_config alone;
  mdp_param weight;
  mdp_plan_report plan;
  mdp_unique_id id;
  mdp_comm* comm = NULL;
  memset(&alone, 0, sizeof alone);
  memset(&weight, 0, sizeof weight);
  memset(&plan, 0, sizeof plan);
  alone.struct_size = sizeof alone;
  alone.size = 1;
  weight.struct_size = sizeof weight;
  weight.dtype = MDP_DTYPE_F32;
  weight.name = "weight";
  weight.shape = shape;
  weight.ndim = 2;
  plan.struct_size = sizeof plan;

  if (mdp_plan(NULL, 1, 0, NULL, &weight, 1, NULL, &plan) != MDP_OK) return failed("mdp_plan");
  if (mdp_unique_id_create(&id) != MDP_OK) return failed("mdp_unique_id_create");
  if (mdp_comm_create(&alone, &id, &comm) != MDP_OK) return failed("mdp_comm_create");
  printf("megadp %u.%u: rank %d of %d, %u bytes of parameters\n", (unsigned)(mdp_version() >> 16), (unsigned)(mdp_version() >> 8 & 255u),
         (int)mdp_comm_rank(comm), (int)mdp_comm_size(comm), (unsigned)plan.param_bytes);
  mdp_comm_destroy(comm);
  return plan.param_bytes >= 48 ? 0 : 1;
}
