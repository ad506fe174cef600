// SPDX-License-Identifier: Apache-2.0
#include "run_environment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <map>

#include "control/launch/launch.h"
#include "owned_fd.h"

extern char** environ;

namespace megadp::tool {
namespace {

constexpr size_t kSecretDigits = 64;

Result<std::string> random_hex(size_t digits) {
  std::string bytes(digits / 2, '\0');
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t got = getrandom(bytes.data() + done, bytes.size() - done, 0);
    if (got < 0 && errno != EINTR) return system_error("no random bytes from the kernel (getrandom)", errno);
    if (got > 0) done += static_cast<size_t>(got);
  }
  std::string hex;
  for (unsigned char byte : bytes) hex += fmt::format("{:02x}", byte);
  return hex;
}

// FNV-1a, then a mixing step (Steele and Vigna's): 64 bits of a 256-bit secret, so 192 bits stay unknown to who sees the name.
uint64_t digest(const std::string& bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001b3u;
  hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9u;
  hash = (hash ^ hash >> 27) * 0x94d049bb133111ebu;
  return hash ^ hash >> 31;
}

}  // namespace

Result<std::string> random_secret() {
  return random_hex(kSecretDigits);
}

Result<std::string> read_secret(const std::string& path) {
  const std::string make = fmt::format("(umask 077; od -An -v -tx1 -N32 /dev/urandom | tr -d ' \\n' > '{}')", path);
  // Not blocking: a named pipe would wait for a writer.
  const OwnedFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.open()) {
    const int error = errno;
    Status why = system_error(fmt::format("the secret file '{}' cannot be opened", path), error);
    return error == ENOENT ? Status(why.code(), why.text() + "; make one, and copy it to every node: " + make) : why;
  }
  struct stat info {};
  if (fstat(file.get(), &info) != 0) return system_error(fmt::format("the secret file '{}' cannot be examined", path), errno);
  if (!S_ISREG(info.st_mode)) return invalid("the secret file '", path, "' is not a regular file");
  if (info.st_uid != geteuid() && info.st_uid != 0)
    return invalid("the secret file '", path, "' belongs to user ", info.st_uid, ": it must belong to user ", geteuid(), " or to root");
  if (info.st_mode & 0077)
    return invalid("the secret file '", path, "' has mode ", fmt::format("{:04o}", info.st_mode & 07777),
                   ", so others may read or change it: chmod 0600 it");

  std::array<char, 256> buffer{};
  const ssize_t got = read(file.get(), buffer.data(), buffer.size());
  if (got < 0) return system_error(fmt::format("the secret file '{}' cannot be read", path), errno);
  std::string secret(buffer.data(), static_cast<size_t>(got));
  while (!secret.empty() && std::isspace(static_cast<unsigned char>(secret.back()))) secret.pop_back();
  for (char& c : secret) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const bool hex = std::all_of(secret.begin(), secret.end(), [](unsigned char c) { return std::isxdigit(c); });
  if (secret.size() != kSecretDigits || !hex)
    return invalid("the secret file '", path, "' must hold 64 hexadecimal digits and nothing else; make one: ", make);
  return secret;
}

Result<std::string> unique_name() {
  Result<std::string> random = random_hex(16);
  if (!random) return random.status();
  return fmt::format("run-{}-{}", getpid(), *random);
}

std::string shared_job_name(const std::string& secret, const std::string& root, int nranks) {
  return fmt::format("run-{:016x}", digest(fmt::format("{} {} {}", secret, root, nranks)));
}

Status check_root(const std::string& root) {
  const size_t colon = root.rfind(':');
  const std::string host = colon == std::string::npos ? "" : root.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const bool plain = !host.empty() && host.find_first_of("[]: \t") == std::string::npos;
  int port = 0;
  if (colon != std::string::npos) {
    const char* end = root.data() + root.size();
    const auto parsed = std::from_chars(root.data() + colon + 1, end, port);
    if (parsed.ec != std::errc() || parsed.ptr != end) port = 0;
  }
  if ((plain || bracketed) && port >= 1 && port <= 65535) return {};
  return invalid("the root is '", root, "': it must be HOST:PORT with a port from 1 to 65535, an IPv6 address in brackets");
}

std::vector<int> allowed_cpus() {
  // The kernel refuses a set smaller than its own, so grow until it fits.
  for (int size = 1024; size <= 1 << 20; size *= 2) {
    cpu_set_t* set = CPU_ALLOC(size);
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(size);
    std::vector<int> cpus;
    const bool done = sched_getaffinity(0, bytes, set) == 0;
    for (int cpu = 0; done && cpu < size; ++cpu)
      if (CPU_ISSET_S(cpu, bytes, set)) cpus.push_back(cpu);
    CPU_FREE(set);
    if (done) return cpus;
    if (errno != EINVAL) break;
  }
  return {};
}

std::vector<int> cpu_share(const std::vector<int>& cpus, Binding binding, int index, int count) {
  const size_t n = static_cast<size_t>(count), i = static_cast<size_t>(index);
  if (binding == Binding::none || cpus.size() < n) return {};
  const auto at = [&](size_t k) { return cpus.begin() + static_cast<std::ptrdiff_t>(cpus.size() * k / n); };
  return {at(i), at(i + 1)};
}

std::vector<std::string> rank_environment(const Job& job, int index, size_t cpus) {
  std::map<std::string, std::string> set{
      {"MEGADP_RANK", std::to_string(job.first_rank + index)},
      {"MEGADP_NRANKS", std::to_string(job.nranks)},
      {"MEGADP_LOCAL_RANK", std::to_string(index)},
      {"MEGADP_LOCAL_SIZE", std::to_string(job.count)},
      {"MEGADP_JOB", job.name},
      {"MEGADP_SECRET", job.secret},
      {"MEGADP_LAUNCHER", job.launcher},
      {kOuterLaunchers, outer_launchers()},
  };
  if (!job.root.empty()) set["MEGADP_ROOT"] = job.root;
  const std::string threads = std::to_string(std::max<size_t>(1, cpus / static_cast<size_t>(job.count)));
  for (const char* name : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"})
    if (std::getenv(name) == nullptr) set[name] = threads;

  std::vector<std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string line = *entry;
    const std::string name = line.substr(0, line.find('='));
    // An outer `megadp run` may have left a root that is not this job's.
    if (set.count(name) == 0 && name != "MEGADP_ROOT") out.push_back(line);
  }
  for (const auto& [name, value] : set) out.push_back(name + "=" + value);
  return out;
}

}  // namespace megadp::tool
