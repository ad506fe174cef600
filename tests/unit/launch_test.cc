// SPDX-License-Identifier: Apache-2.0
// What the environment of each launcher means, what is refused, and the ids that replace a launcher.
#include <rapidcheck.h>
#include <stdlib.h>

#include <map>
#include <set>

#include "base/log.h"
#include "check.h"
#include "control/join/job_key.h"
#include "control/launch/launch.h"
#include "control/launch/launchers.h"
#include "control/launch/variables.h"

using namespace megadp;
using namespace megadp::test;

namespace {

using Env = std::map<std::string, std::string>;

const std::string kSecret = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const Env kMegadp = {{"MEGADP_RANK", "1"}, {"MEGADP_NRANKS", "4"}, {"MEGADP_JOB", "abc"}, {"MEGADP_SECRET", kSecret}};
const Env kTorch = {{"RANK", "3"},
                    {"WORLD_SIZE", "4"},
                    {"LOCAL_RANK", "3"},
                    {"LOCAL_WORLD_SIZE", "4"},
                    {"MASTER_ADDR", "node1"},
                    {"MASTER_PORT", "29500"},
                    {"TORCHELASTIC_RUN_ID", "none"},
                    {"TORCHELASTIC_RESTART_COUNT", "0"}};
const Env kSlurm = {{"SLURM_PROCID", "2"},         {"SLURM_NTASKS", "4"},  {"SLURM_STEP_NUM_TASKS", "4"},
                    {"SLURM_JOB_ID", "77"},        {"SLURM_STEP_ID", "0"}, {"SLURM_NNODES", "1"},
                    {"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_LOCALID", "2"}, {"SLURM_STEP_NODELIST", "n01"}};
const Env kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"PMIX_NAMESPACE", "123"},     {"PMIX_RANK", "1"}};
const Env kMpich = {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"PMI_FD", "6"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}};

Env with(Env env, const Env& more) {
  for (const auto& [name, value] : more) env[name] = value;
  return env;
}
Env without(Env env, const std::string& name) {
  env.erase(name);
  return env;
}

// Only what a launcher sets is cleared: the rest is the test's own.
void set_environment(const Env& env) {
  static std::set<std::string> set_before;
  for (const Env* all : {&kMegadp, &kTorch, &kSlurm, &kOpenMpi, &kMpich}) {
    for (const auto& [name, value] : *all) set_before.insert(name);
  }
  for (const char* name :
       {"SLURM_JOBID", "SLURM_STEPID", "SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "MEGADP_ROOT", "MEGADP_LOCAL_RANK",
        "MEGADP_LOCAL_SIZE", "OMPI_MCA_ess_base_jobid", "SLURM_RESTART_COUNT", kOuterLaunchers, "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE", "PALS_RANKID", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "JOB_COMPLETION_INDEX", "PBS_TASKNUM"}) {
    set_before.insert(name);
  }
  for (const std::string& name : set_before) unsetenv(name.c_str());
  for (const auto& [name, value] : env) {
    setenv(name.c_str(), value.c_str(), 1);
    set_before.insert(name);
  }
}

Launch accepts(const Env& env, const std::string& launcher, int rank, int nranks, const std::string& root = "",
               Place at = Place::current()) {
  set_environment(env);
  const auto launch = launch_from_environment();
  if (!check(launch.ok(), "refused: " + launch.status().text(), at)) return {};
  check_equal(launch->launcher, launcher, "launcher", at);
  check_equal(launch->rank, rank, "rank", at);
  check_equal(launch->nranks, nranks, "nranks", at);
  check_equal(launch->root_port == 0 ? std::string() : launch->root_host, root, "root host", at);
  return *launch;
}

void refuses(const Env& env, const std::vector<std::string>& words, Place at = Place::current()) {
  set_environment(env);
  fails(launch_from_environment().status(), Code::invalid, words, at);
}

void nothing_is_one_rank() {
  accepts({}, "alone", 0, 1);
  accepts({{"RANK", ""}, {"PMI_RANK", ""}}, "alone", 0, 1);  // set to nothing is not set
  // A batch script's environment: a job, but no step.
  accepts({{"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}}, "alone", 0, 1);
  accepts({{"PMIX_NAMESPACE", "x"}}, "alone", 0, 1);
  refuses({{"MEGADP_ROOT", "a:1"}}, {"MEGADP_ROOT=a:1", "no launcher"});
  refuses({{"MASTER_ADDR", "n"}, {"MASTER_PORT", "1"}}, {"MASTER_ADDR=n", "MASTER_PORT=1", "RANK"});
}

// Launchers whose ranks were alone, each with a model of its own: refused where it is certain, told where it may be meant.
void unknown_launchers_are_told() {
  static int warnings = 0;
  set_log([](void*, int32_t level, const char*, size_t) { warnings += level == static_cast<int32_t>(LogLevel::warning); }, nullptr);
  refuses({{"PMIX_NAMESPACE", "x"}, {"PMIX_RANK", "1"}}, {"PMIX_RANK=1", "PMIx", "megadp run"});
  accepts({{"PMIX_NAMESPACE", "x"}, {"PMIX_RANK", "0"}}, "alone", 0, 1);
  refuses({{"MV2_COMM_WORLD_RANK", "0"}, {"MV2_COMM_WORLD_SIZE", "2"}}, {"MV2_COMM_WORLD_RANK=0, MV2_COMM_WORLD_SIZE=2"});
  accepts({{"MV2_COMM_WORLD_RANK", "0"}, {"MV2_COMM_WORLD_SIZE", "1"}}, "alone", 0, 1);
  refuses({{"PALS_RANKID", "3"}}, {"PALS_RANKID=3"});
  refuses({{"FLUX_TASK_RANK", "1"}}, {"FLUX_TASK_RANK=1"});
  refuses({{"FLUX_TASK_RANK", "0"}, {"FLUX_JOB_SIZE", "2"}}, {"FLUX_TASK_RANK=0, FLUX_JOB_SIZE=2"});
  accepts({{"JOB_COMPLETION_INDEX", "0"}}, "alone", 0, 1);
  accepts({{"PBS_TASKNUM", "1"}}, "alone", 0, 1);
  deliver_logs();
  check_equal(warnings, 0, "warnings of what may well be alone");
  accepts({{"JOB_COMPLETION_INDEX", "2"}}, "alone", 0, 1);
  accepts({{"PBS_TASKNUM", "2"}}, "alone", 0, 1);
  deliver_logs();
  check_equal(warnings, 2, "warnings");
  set_log(nullptr, nullptr);
}

void reads_megadp_run() {
  const Launch launch = accepts(kMegadp, "megadp run", 1, 4);
  check_equal(launch.job, std::string("megadp run/abc"), "job");
  check_equal(to_hex(launch.secret.data(), 32), kSecret, "secret");
  for (const auto& [name, value] : kMegadp) refuses(without(kMegadp, name), {"megadp run", "missing " + name});
  refuses({{"MEGADP_LOCAL_RANK", "0"}}, {"missing MEGADP_RANK, MEGADP_NRANKS, MEGADP_JOB, MEGADP_SECRET"});
  refuses(with(kMegadp, {{"MEGADP_RANK", "4"}}), {"MEGADP_RANK=4 is not below MEGADP_NRANKS=4"});
  refuses(with(kMegadp, {{"MEGADP_RANK", "-1"}}), {"MEGADP_RANK=-1"});
  refuses(with(kMegadp, {{"MEGADP_RANK", "1x"}}), {"MEGADP_RANK=1x"});
  refuses(with(kMegadp, {{"MEGADP_NRANKS", "99999999999"}}), {"MEGADP_NRANKS=99999999999"});
  refuses(with(kMegadp, {{"MEGADP_SECRET", "12"}}), {"MEGADP_SECRET", "64 hexadecimal"});
  refuses(with(kMegadp, {{"MEGADP_SECRET", std::string(64, '0')}}), {"MEGADP_SECRET", "no secret"});
  refuses(with(kMegadp, {{"MEGADP_LOCAL_SIZE", "5"}}), {"MEGADP_LOCAL_SIZE=5", "more than all ranks, 4"});
  refuses(with(kMegadp, {{"MEGADP_LOCAL_SIZE", "2"}}), {"several nodes", "MEGADP_ROOT"});
  accepts(with(kMegadp, {{"MEGADP_LOCAL_SIZE", "2"}, {"MEGADP_ROOT", "node1:7000"}}), "megadp run", 1, 4, "node1");
  accepts(with(kMegadp, {{"MEGADP_ROOT", "[fe80::1]:7000"}}), "megadp run", 1, 4, "fe80::1");
  refuses(with(kMegadp, {{"MEGADP_ROOT", "fe80::1:7000"}}), {"MEGADP_ROOT", "brackets"});
  for (const char* root : {"node1", "node1:", ":7000", "node1:0", "node1:65536", "node1:7a"}) {
    refuses(with(kMegadp, {{"MEGADP_ROOT", root}}), {"MEGADP_ROOT", root, "host:port"});
  }
  // No sentence may carry the secret.
  set_environment(without(kMegadp, "MEGADP_JOB"));
  check(launch_from_environment().status().text().find(kSecret) == std::string::npos, "the sentence tells the secret");
  for (const std::string& line : launcher_variables()) check(line.find(kSecret) == std::string::npos, "the list tells the secret");
  check_equal(launcher_variables().size(), size_t{3}, "variables listed");
}

void reads_torchrun() {
  const Launch launch = accepts(kTorch, "torchrun", 3, 4);
  check(launch.job != accepts(with(kTorch, {{"TORCHELASTIC_RESTART_COUNT", "1"}}), "torchrun", 3, 4).job, "a restart is another job");
  check(launch.job != accepts(with(kTorch, {{"TORCHELASTIC_RUN_ID", "b"}}), "torchrun", 3, 4).job, "another run is another job");
  check(launch.job != accepts(with(kTorch, {{"MASTER_PORT", "29501"}}), "torchrun", 3, 4).job, "another port is another job");
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    refuses(without(kTorch, name), {"torchrun", text("missing ", name), "TORCHELASTIC_RUN_ID=none"});
  }
  refuses(with(kTorch, {{"MASTER_PORT", "0"}}), {"MASTER_PORT=0"});
  refuses(with(kTorch, {{"LOCAL_RANK", "4"}}), {"LOCAL_RANK=4"});
  // Several nodes: the address of the first, and never the agent's port.
  const Launch wide = accepts(with(kTorch, {{"LOCAL_WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}}), "torchrun", 3, 4, "node1");
  check(wide.root_port != 29500 && wide.root_port >= 20000 && wide.root_port < 32768, text("port ", wide.root_port));
  for (int port = 20000; port <= 30001; port += 97) {
    const Launch at = accepts(with(kTorch, {{"LOCAL_WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"MASTER_PORT", std::to_string(port)}}),
                              "torchrun", 3, 4, "node1");
    check(at.root_port != port, "MASTER_PORT would be bound");
  }
  accepts(with(kTorch, {{"MEGADP_ROOT", "node2:7000"}}), "torchrun", 3, 4, "node2");
  refuses(with(kTorch, {{"MEGADP_ROOT", "node1:29500"}}), {"MEGADP_ROOT=node1:29500", "torchrun itself listens"});
  // Set by hand: it is not known how many nodes there are.
  const Env by_hand = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}};
  accepts(by_hand, "torchrun", 0, 2, "10.0.0.1");
  accepts(with(by_hand, {{"MASTER_ADDR", "127.0.0.1"}}), "torchrun", 0, 2);
  accepts(with(by_hand, {{"MASTER_ADDR", "localhost"}}), "torchrun", 0, 2);
  accepts(with(by_hand, {{"WORLD_SIZE", "1"}}), "torchrun", 0, 1);
  refuses({{"RANK", "0"}}, {"found RANK=0", "missing WORLD_SIZE, MASTER_ADDR, MASTER_PORT"});
  refuses({{"WORLD_SIZE", "2"}}, {"missing RANK"});
}

void reads_slurm() {
  accepts(kSlurm, "SLURM", 2, 4);
  accepts(without(kSlurm, "SLURM_NTASKS"), "SLURM", 2, 4);
  accepts(without(kSlurm, "SLURM_STEP_NUM_TASKS"), "SLURM", 2, 4);
  accepts(with(without(kSlurm, "SLURM_STEP_ID"), {{"SLURM_STEPID", "0"}}), "SLURM", 2, 4);
  for (const char* name : {"SLURM_PROCID", "SLURM_JOB_ID", "SLURM_STEP_ID"}) {
    refuses(without(kSlurm, name), {"SLURM", text("missing ", name)});
  }
  refuses(without(without(kSlurm, "SLURM_NTASKS"), "SLURM_STEP_NUM_TASKS"), {"missing SLURM_STEP_NUM_TASKS"});
  refuses(without(without(kSlurm, "SLURM_NNODES"), "SLURM_STEP_NUM_NODES"), {"missing SLURM_STEP_NUM_NODES"});
  refuses(with(kSlurm, {{"SLURM_PROCID", "4"}}), {"SLURM_PROCID=4"});
  refuses(with(kSlurm, {{"SLURM_LOCALID", "9"}}), {"SLURM_LOCALID=9"});
  const Env wide = with(kSlurm, {{"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_STEP_NODELIST", "node[007-009,12],login"}});
  accepts(wide, "SLURM", 2, 4, "node007");
  accepts(with(wide, {{"MEGADP_ROOT", "other:99"}}), "SLURM", 2, 4, "other");
  refuses(without(wide, "SLURM_STEP_NODELIST"), {"missing SLURM_STEP_NODELIST"});
  refuses(with(wide, {{"SLURM_STEP_NODELIST", "node[007"}}), {"node[007", "MEGADP_ROOT"});
  const std::map<std::string, std::string> lists = {
      {"a", "a"}, {"a,b", "a"}, {"a[1-3]", "a1"}, {"a[01,05]b,c", "a01b"}, {"r[2-3]n[07]", "r2n07"}, {"", ""},
      {"a[", ""}, {"a]b", ""},  {"a[]", ""},      {"x-1.dom", "x-1.dom"},  {"a[1-2],b[3-4]", "a1"}};
  for (const auto& [list, host] : lists) check_equal(first_slurm_host(list), host, "first node of " + list);
}

void reads_mpi() {
  const Launch launch = accepts(kOpenMpi, "Open MPI", 1, 2);
  check_equal(launch.job, std::string("Open MPI/123"), "job");
  accepts(with(without(kOpenMpi, "PMIX_NAMESPACE"), {{"OMPI_MCA_ess_base_jobid", "9"}}), "Open MPI", 1, 2);
  for (const auto& [name, value] : kOpenMpi) {
    if (name != "PMIX_RANK") refuses(without(kOpenMpi, name), {"Open MPI", "missing " + name});
  }
  refuses(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "2"}}), {"OMPI_COMM_WORLD_RANK=2"});
  refuses(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "x"}}), {"OMPI_COMM_WORLD_LOCAL_SIZE=x"});
  accepts(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}, {"MEGADP_ROOT", "n:5"}}), "Open MPI", 1,
          2, "n");
  // This test does not run under mpiexec, so its variables alone name no job.
  refuses(kMpich, {"MPICH", "hydra_pmi_proxy", "PMI_RANK=0"});
  for (const char* name : {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}) {
    refuses(without(kMpich, name), {"MPICH", text("missing ", name)});
  }
}

void weighs_several() {
  // `megadp run` is the innermost, whatever started it.
  for (const Env& outer : {kTorch, kSlurm, kOpenMpi, kMpich}) accepts(with(outer, kMegadp), "megadp run", 1, 4);
  refuses(with(kTorch, without(kMegadp, "MEGADP_JOB")), {"megadp run", "torchrun", "MEGADP_RANK=1", "RANK=3"});
  // SLURM is the outermost: what it starts hands its variables on.
  accepts(with(kSlurm, kTorch), "torchrun", 3, 4);
  accepts(with(kSlurm, kOpenMpi), "Open MPI", 1, 2);
  // srun speaks PMI itself.
  accepts(with(kSlurm, {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"PMI_FD", "5"}}), "SLURM", 2, 4);
  refuses(with(kSlurm, {{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}}), {"SLURM", "MPICH", "SLURM_PROCID=2", "PMI_RANK=1"});
  // Exported in a job script for those who look for it, and in agreement.
  accepts(with(kSlurm, {{"WORLD_SIZE", "4"}, {"MASTER_ADDR", "n01"}, {"MASTER_PORT", "29500"}}), "SLURM", 2, 4);
  refuses(with(kSlurm, {{"WORLD_SIZE", "8"}}), {"SLURM", "torchrun", "WORLD_SIZE=8"});
  // Derived from one another, and in agreement: the one that knows the nodes.
  const Env derived = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "n01"}, {"MASTER_PORT", "29500"}};
  accepts(with(kOpenMpi, derived), "Open MPI", 1, 2);
  refuses(with(kOpenMpi, kTorch), {"Open MPI", "torchrun", "OMPI_COMM_WORLD_RANK=1", "RANK=3"});
  refuses(with(kOpenMpi, kMpich), {"Open MPI", "MPICH", "PMI_RANK=0"});
}

// `megadp run` won over whatever came: a launcher in the place of a rank started ranks that were all rank 0 of 1.
void notices_a_launcher_below_megadp_run() {
  for (const Env& other : {kTorch, kSlurm, kOpenMpi}) {
    set_environment(other);
    const std::string note = outer_launchers();
    accepts(with(other, with(kMegadp, {{kOuterLaunchers, note}})), "megadp run", 1, 4);
    set_environment({});
    const Env below = with(with(kMegadp, {{"MEGADP_RANK", "0"}, {"MEGADP_NRANKS", "1"}}), {{kOuterLaunchers, outer_launchers()}});
    refuses(with(below, other), {"contradict", "megadp run (MEGADP_RANK=0 MEGADP_NRANKS=1"});
  }
  // Of the same launcher as the one above, and of another job.
  set_environment(kOpenMpi);
  const Env nested = with(kMegadp, {{kOuterLaunchers, outer_launchers()}});
  refuses(with(with(kOpenMpi, nested), {{"PMIX_NAMESPACE", "124"}}), {"contradict", "Open MPI (OMPI_COMM_WORLD_RANK=1"});
  refuses(with(with(kOpenMpi, nested), kTorch), {"contradict", "RANK=3"});
  check(one_of_several().find("OMPI_COMM_WORLD_RANK=1") != std::string::npos, "one of Open MPI's two");
  // In agreement, or of a single process: nothing is trained twice.
  const Env noted = with(kMegadp, {{kOuterLaunchers, "none"}});
  accepts(with(noted, {{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "n01"}, {"MASTER_PORT", "29500"}}), "megadp run", 1, 4);
  accepts(with(noted, {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "n01"}, {"MASTER_PORT", "29500"}}), "megadp run", 1, 4);
  accepts(with(noted, {{"WORLD_SIZE", "8"}}), "megadp run", 1, 4);
  // A script's own group of PyTorch's, and its own port below torchrun.
  accepts(with(noted, {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "n01"}, {"MASTER_PORT", "29500"}}), "megadp run", 1, 4);
  set_environment(kTorch);
  const std::string torchrun = outer_launchers();
  accepts(with(with(kMegadp, kTorch), {{kOuterLaunchers, torchrun}, {"MASTER_PORT", "29501"}}), "megadp run", 1, 4);
  set_environment({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  check(one_of_several().empty(), "a task that is alone");
}

void ids_carry_what_they_were_made_with() {
  set_environment({});
  const auto id = create_unique_id();
  const auto other = create_unique_id();
  check(id.ok() && other.ok(), "ids are made");
  const auto launch = launch_from_id(*id, 2, 3);
  check(launch.ok(), "the id is read");
  check_equal(launch->launcher, std::string("id"), "launcher");
  check_equal(launch->rank, 2, "rank");
  check_equal(launch->nranks, 3, "nranks");
  check_equal(launch->root_port, uint16_t{0}, "port");
  check(launch->secret != std::array<uint8_t, 32>{}, "there is a secret");
  check(launch->secret != launch_from_id(*other, 2, 3)->secret, "secrets differ");
  check(launch->job != launch_from_id(*other, 2, 3)->job, "names differ");
  set_environment({{"MEGADP_ROOT", "[2001:db8::7]:4321"}});
  const auto wide = launch_from_id(*create_unique_id(), 0, 2);
  check_equal(wide->root_host, std::string("2001:db8::7"), "root host");
  check_equal(wide->root_port, uint16_t{4321}, "root port");
  set_environment({{"MEGADP_ROOT", "no port"}});
  fails(create_unique_id().status(), Code::invalid, {"MEGADP_ROOT", "host:port"});
  set_environment({{"MEGADP_ROOT", std::string(62, 'h') + ":1"}});
  fails(create_unique_id().status(), Code::invalid, {"MEGADP_ROOT", "62 letters"});
  set_environment({{"MEGADP_ROOT", std::string(61, 'h') + ":1"}});
  check_equal(launch_from_id(*create_unique_id(), 0, 2)->root_host, std::string(61, 'h'), "longest root host");
  set_environment({});
  fails(launch_from_id(UniqueId{}, 0, 1).status(), Code::invalid, {"id", "zero", "mdp_unique_id_create"});
  fails(launch_from_id(*id, 0, 0).status(), Code::invalid, {"size is 0"});
  fails(launch_from_id(*id, 3, 3).status(), Code::invalid, {"rank is 3", "size, which is 3"});
  fails(launch_from_id(*id, -1, 3).status(), Code::invalid, {"rank is -1"});
  rc::check("one changed byte is noticed",
            [&] {
              UniqueId damaged = *id;
              const size_t at = *rc::gen::inRange<size_t>(0, 128);
              damaged.bytes[at] = static_cast<uint8_t>(damaged.bytes[at] ^ *rc::gen::inRange(1, 256));
              const Status status = launch_from_id(damaged, 0, 1).status();
              RC_ASSERT(status.code() == Code::invalid);
              RC_ASSERT(status.text().rfind("id: ", 0) == 0);
            }) ||
      check(false, "property failed");
}

std::string counted(size_t length) {  // the bytes 0, 1, 2, ...
  std::string bytes;
  for (size_t i = 0; i < length; ++i) bytes.push_back(static_cast<char>(i));
  return bytes;
}

std::string hex_of(const Digest& digest) {
  return to_hex(digest.data(), digest.size());
}

// "abc" of RFC 7693, appendix B; some of its authors' keyed vectors (the key is the bytes 0 to 31), and a digest of all 256 of them, with a
// key and without. Python's hashlib.blake2s says the same.
void hash_is_blake2s() {
  check_equal(hex_of(blake2s({}, "abc")), std::string("508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982"), "abc");
  const std::string key_bytes = counted(32);
  const std::vector<uint8_t> key(key_bytes.begin(), key_bytes.end());
  const std::map<size_t, std::string> vectors = {{0, "48a8997da407876b3d79c0d92325ad3b89cbb754d86ab71aee047ad345fd2c49"},
                                                 {64, "8975b0577fd35566d750b362b0897a26c399136df07bababbde6203ff2954ed4"},
                                                 {65, "21fe0ceb0052be7fb0f004187cacd7de67fa6eb0938d927677f2398c132317a8"},
                                                 {255, "3fb735061abc519dfe979e54c1ee5bfad0a9d858b3315bad34bde999efd724dd"}};
  for (const auto& [length, expected] : vectors)
    check_equal(hex_of(blake2s(key, counted(length))), expected, text("of ", length, " bytes"));
  std::string keyed, plain;
  for (size_t length = 0; length < 256; ++length) {
    const Digest with_key = blake2s(key, counted(length)), without = blake2s({}, counted(length));
    keyed.append(with_key.begin(), with_key.end());
    plain.append(without.begin(), without.end());
  }
  check_equal(hex_of(blake2s({}, keyed)), std::string("2582f7b18a91f66ef22aa9455384ada69b2590306a6470ee8588df75ee982f02"), "keyed");
  check_equal(hex_of(blake2s({}, plain)), std::string("6d86d20a9d486cc270bc10f4523a3e811f7f88636204b0a9a76277823b30b672"), "without a key");
}

void names_follow_from_job_and_secret() {
  Launch a;
  a.job = "a";
  Launch b = a;
  b.secret[31] = 1;
  check(socket_name(a, "hub") != socket_name(b, "hub"), "the name depends on the secret");
  check(socket_name(a, "hub") != socket_name(a, "host"), "the name depends on the purpose");
  check(auth_key_of(b) == b.secret, "the secret is the guard");
  check(auth_key_of(a) != AuthKey{}, "without a secret the job guards");
  Launch c = a;
  c.job = "c";
  check(auth_key_of(a) != auth_key_of(c) && socket_name(a, "hub") != socket_name(c, "hub"), "the job tells jobs apart");
}

}  // namespace

int main() {
  set_property_runs(300);
  nothing_is_one_rank();
  unknown_launchers_are_told();
  reads_megadp_run();
  reads_torchrun();
  reads_slurm();
  reads_mpi();
  weighs_several();
  notices_a_launcher_below_megadp_run();
  ids_carry_what_they_were_made_with();
  hash_is_blake2s();
  names_follow_from_job_and_secret();
  return finish();
}
