// SPDX-License-Identifier: Apache-2.0
// The subcommands of the megadp program. Each adds itself to the command line and returns what runs it once the line has been parsed.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace megadp::tool {

// Takes the words from the first "--" on, which are not options; returns the exit status of the program: 0 done, 1 failed, 2 used wrongly;
// `run` gives its ranks'.
using Command = std::function<int(const std::vector<std::string>& rest)>;

Command add_run(CLI::App& app);
Command add_info(CLI::App& app);
Command add_plan(CLI::App& app);
Command add_bench(CLI::App& app);
Command add_checkpoint(CLI::App& app);

// Print "megadp <command>: <sentence>" on stderr; and the exit status that goes with it.
int used_wrongly(const char* command, const std::string& sentence);  // 2, and where to find help
int failed(const char* command, const std::string& sentence);        // 1; "": of the program as a whole
// After the last of a command's output: 0, or 1 and a sentence when it did not all reach stdout (a full disk).
int written(const char* command);

}  // namespace megadp::tool
