# SPDX-License-Identifier: Apache-2.0
"""Lua, Ruby, Perl, Tcl, C# and R: one program each (languages/tests), which fits a line and meets the failures, with 1 and 2 ranks."""
import os
import tempfile
import unittest

import build
import ranks

PROGRAMS = os.path.join(ranks.SWIG, "languages", "tests")


def expected(count):
    """What every rank prints: AdamW's 40 steps towards y = 2 x - 1, and failures, for which the last rank leaves out the gradient of
    parameter 0; norms of reduced gradients between sync and the 41st step, and how many each parameter has had, and
    then is said to have had; whether a checkpoint brings back parameter 0, how many steps parameter 1 has then, and two texts of it; the same of
    one of two buffers and an array of the program's own, and one whose size is refused;
    parameters by name, buckets, and how far the first of the ranks in reverse is from the world's last; rank 0's
    value, which a step with lr 0 leaves alone. Then the last rank's gradient that is not finite, for which a step with a loss scale is
    skipped; the order of use after the next one, and warnings of large gradients. Then a step
    with ZERO_2, whose gradients are put and written where they go, beside one with ZERO_1: what is refused, how much of the gradients the
    ranks own together, bytes outside the pool. And one with an optimizer instance for each rank."""
    return ["fit 2.23 -0.89", "sum 0", f"missing MDP_E_STATE 0 {count - 1}", "bad MDP_E_INVALID -1 -1", "shape MDP_E_INVALID 1 -1",
            "norm 1.41 1.00 0.50 0.00 2.24 1.00", "listed MDP_E_INVALID -1 -1", "steps 41 41", "set 100 7 AdamW",
            "restored 1 7 all r0", "absent MDP_E_SYSTEM -1 -1", "parts 1 4 6", "sized MDP_E_INVALID -1 -1",
            "names 1 0 1 0", "unknown MDP_E_INVALID -1 -1",
            "value 7", f"numeric MDP_E_NUMERIC 1 {count - 1}", "sent 1 1 0 0", "view MDP_E_UNSUPPORTED -1 -1", "lent MDP_E_STATE 1 -1", "released MDP_E_STATE -1 -1", "pooled 6 0", "zero2 same",
            "instances same", "closed MDP_E_STATE -1 -1", "view 5.5"]


class Language:
    """What the tests below have in common; `name` is build.py's. `alone` waits inside the library for a rank that never comes, until a signal
    ends that by the language's own means; languages without one have no way to ask for signals. `late` is of two ranks: rank 0's barrier and
    broadcast end so before rank 1 comes."""
    name = ""
    alone = None
    late = None

    def built(self):
        """The folder that the language's module is in."""
        folder = os.path.join(ranks.MADE, self.name)
        try:
            build.build(self.name, folder)
        except build.Missing as missing:
            self.skipTest(str(missing))
        return folder

    def test_a_signal(self):
        if self.alone is None:
            return
        folder = self.built()
        env = ranks.environment(MEGADP_MODULE=folder, **self.environment(folder))
        ended = ranks.run([*self.command(folder)[:-1], *self.alone], env=env)
        self.assertEqual((ended.stdout, ended.returncode), ("interrupted\n", 0), ended.stderr)

    def test_what_an_interrupt_left(self):
        """The same call goes on with it at once; after another operation it is a new one."""
        if self.late is None:
            return
        folder = self.built()
        with tempfile.TemporaryDirectory() as empty:
            env = ranks.environment(MEGADP_FLAG=os.path.join(empty, "flag"), **self.environment(folder))
            ended = ranks.run_ranks(2, [*self.command(folder)[:-1], *self.late], env=env)
        self.assertEqual(ranks.check_ended(self, ended), "on, then anew\n" * 2)

    def command(self, folder):
        raise NotImplementedError

    def environment(self, folder):
        return {}

    def test_one_and_two_ranks(self):
        folder = self.built()
        command = self.command(folder)
        for count in (1, 2):
            with tempfile.TemporaryDirectory() as empty:
                env = ranks.environment(MEGADP_MODULE=folder, MEGADP_FLAG=os.path.join(empty, "flag"), MEGADP_CHECKPOINTS=empty,
                                        **self.environment(folder))
                ended = ranks.run_ranks(count, command, env=env)
            printed = sorted(" ".join(line.split()) for line in ranks.check_ended(self, ended).splitlines())
            self.assertEqual(printed, sorted(expected(count) * count))

    def program(self, name, counts, printed, *arguments):
        """What a program prints, on each of so many ranks."""
        folder = self.built()
        for count in counts:
            with tempfile.TemporaryDirectory() as empty:
                env = ranks.environment(MEGADP_MODULE=folder, MEGADP_CHECKPOINTS=empty, **self.environment(folder))
                ended = ranks.run_ranks(count, [*self.command(folder)[:-1], os.path.join(PROGRAMS, name), *arguments], env=env)
            self.assertEqual(ranks.check_ended(self, ended), printed * count)


class Lua(Language, unittest.TestCase):
    """What its programs are about, the others have by the same code."""
    name = "lua"

    def command(self, folder):
        return ["lua5.4", os.path.join(PROGRAMS, "smoke.lua")]

    def environment(self, folder):
        return {"LUA_CPATH": os.path.join(folder, "?.so")}

    def test_tensor_parallelism(self):
        """On lists."""
        self.program("tensor_parallel.lua", [2], "as unsplit\n")

    def test_rules(self):
        """Rules, several optimizers and a scaler."""
        self.program("rules.lua", [1, 2], "as the formulas\n")

    def test_callers_rule(self):
        """Updates of the caller's own."""
        self.program("callers_rule.lua", [1, 2], "the library's bits\n")

    def test_arguments(self):
        """What is no number, not whole or no object is refused."""
        self.program("arguments.lua", [1], "refused\n")


class Ruby(Language, unittest.TestCase):
    name = "ruby"
    alone = ("-r", "megadp", "-e", """
options = Megadp::CommOptions.new
options.id, options.rank, options.size, options.timeout_seconds = Megadp::Comm.unique_id, 0, 2, 200
Thread.new { sleep 0.4; Process.kill(:INT, $$) }
begin
  Megadp::Comm.create(options)
rescue Interrupt
  puts "interrupted"
end
""")
    late = ("-r", "timeout", "-r", "megadp", "-e", """
options = Megadp::CommOptions.new
options.timeout_seconds = 30
comm = Megadp::Comm.create(options)
params = Megadp::Params.new
params.add(Megadp::Param.new("w"))
buffer = Megadp::Buffer.create(comm, params, Megadp::BufferOptions.new)
first = comm.rank == 0
[-> { comm.barrier }, -> { buffer.broadcast(0) }].each_with_index do |call, which|
  [false, true].each do |other|
    flag = "#{ENV["MEGADP_FLAG"]} #{which} #{other}"
    if first
      begin
        Timeout.timeout(0.1) { call.call }
        abort "not interrupted"
      rescue Timeout::Error
        File.write(flag, "")
      end
    else
      sleep 0.01 until File.exist?(flag)
    end
    call.call unless first && other
    next unless other
    comm.all_reduce([1], Megadp::Op_SUM)
    if first
      buffer.write(0, [7 + which])
    else
      sleep 0.2
      File.write(flag + " over", "")
    end
    call.call
    abort "the barrier was over before rank 1 came" if first && which == 0 && !File.exist?(flag + " over")
    abort "an older value" if !first && which == 1 && buffer.read(0).to_a != [8]
  end
end
puts "on, then anew"
""")

    def command(self, folder):
        return ["ruby", "-I", folder, os.path.join(PROGRAMS, "smoke.rb")]

    def test_copies(self):
        """dup and clone of options are others with the same values; of handles they are refused."""
        folder = self.built()
        program = """
first = Megadp::OptimizerOptions.new
first.lr = 0.5
twins = [first.dup, first.clone, Class.new(Megadp::OptimizerOptions).new.dup]
twins.each { |twin| twin.lr = 0.25 }
param = Megadp::Param.new("w").dup
GC.start
puts first.lr, twins.map(&:lr).sum, param.name
comm = Megadp::Comm.create(Megadp::CommOptions.new)
%i[dup clone].each do |name|
  comm.public_send(name)
rescue NoMethodError => e
  puts e.name
end"""
        ended = ranks.run([*self.command(folder)[:-1], "-r", "megadp", "-e", program], env=ranks.environment())
        self.assertEqual(ended.stdout, "0.5\n0.75\nw\ndup\nclone\n", ended.stderr)


class Perl(Language, unittest.TestCase):
    name = "perl"
    alone = ("-e", """
use megadp;
my $options = megadp::CommOptions->new;
@$options{"id", "rank", "size", "timeout_seconds"} = (megadp::Comm::unique_id(), 0, 2, 200);
my $came = 0;
$SIG{ALRM} = sub { $came++ ? die "enough\n" : alarm 1 };
alarm 1;
eval { megadp::Comm::create($options); 1 } and die "not interrupted";
print "interrupted\n" if $@ eq "enough\n" && $came == 2;
""")
    late = ("-e", """
use megadp;
use Time::HiRes qw(alarm sleep);
my ($options, $params) = (megadp::CommOptions->new, megadp::Params->new);
$options->{timeout_seconds} = 30;
my $comm = megadp::Comm::create($options);
$params->add(megadp::Param->new("w"));
my $buffer = megadp::Buffer::create($comm, $params, megadp::BufferOptions->new);
my $first = $comm->rank == 0;
my @calls = (sub { $comm->barrier }, sub { $buffer->broadcast(0) });
sub mark { open my $file, ">", $_[0] or die $! }
for my $which (0, 1) {
  for my $other (0, 1) {
    my ($call, $flag) = ($calls[$which], "$ENV{MEGADP_FLAG} $which $other");
    if ($first) {
      eval { local $SIG{ALRM} = sub { die "late\n" }; alarm 0.1; $call->(); 1 } and die "not interrupted";
      die $@ if $@ ne "late\n";
      mark($flag);
    } else {
      sleep 0.01 until -e $flag;
    }
    $call->() unless $first && $other;
    next unless $other;
    $comm->all_reduce([1], $megadp::Op_SUM);
    if ($first) {
      $buffer->write(0, [7 + $which]);
    } else {
      sleep 0.2;
      mark("$flag over");
    }
    $call->();
    die "the barrier was over before rank 1 came" if $first && $which == 0 && !-e "$flag over";
    die "an older value" if !$first && $which == 1 && $buffer->read(0)->[0] != 8;
  }
}
print "on, then anew\n";
""")

    def command(self, folder):
        return ["perl", "-I", folder, os.path.join(PROGRAMS, "smoke.pl")]

    def test_undef(self):
        """A method of nothing is an error."""
        folder = self.built()
        ended = ranks.run([*self.command(folder)[:-1], "-e", "use megadp; eval { megadp::Buffer::read(undef, 0) }; print $@"])
        self.assertIn("self of Buffer_read is undef", ended.stdout)

    def test_lists(self):
        """What is no list of numbers is an error, and lists of calls that fail are freed."""
        self.program("arguments.pl", [1], "refused\n")


class Tcl(Language, unittest.TestCase):
    name = "tcl"

    def command(self, folder):
        return ["tclsh", os.path.join(PROGRAMS, "smoke.tcl")]

    def test_null(self):
        """Nothing, as a split gives it, is no object and no list."""
        folder = self.built()
        program = '''load [file join $env(MEGADP_MODULE) megadp.so] Megadp
set comm [megadp::Comm_create [megadp::CommOptions options]]
foreach call {{megadp::Comm_rank [megadp::Comm_split $comm -1 0]} {megadp::Comm_all_reduce $comm NULL 0}} { puts [catch $call said]\\ $said }'''
        ended = ranks.run(["tclsh"], input=program, env=ranks.environment(MEGADP_MODULE=folder))
        self.assertEqual(ended.stdout, "1 self of Comm_rank is NULL; it must be a megadp::Comm\n"
                         "1 values of Comm_all_reduce is NULL; it must be a std::vector< double >\n", ended.stderr)


    def test_home(self):
        """As in Tcl's own commands "~" is a home directory."""
        folder = self.built()
        program = '''load [file join $env(MEGADP_MODULE) megadp.so] Megadp
set env(HOME) $env(MEGADP_CHECKPOINTS)
set comm [megadp::Comm_create [megadp::CommOptions options]]
megadp::Params params
params add [megadp::Param param w]
set buffer [megadp::Buffer_create $comm params [megadp::BufferOptions bufferOptions]]
set optimizer [megadp::Optimizer_create $buffer [megadp::OptimizerOptions optimizerOptions]]
megadp::Checkpoint_save ~/run $buffer $optimizer [megadp::CheckpointOptions about]
puts "[file exists ~/run] [catch {megadp::Checkpoint_verify ~nobody-here/run} said] $said"'''
        with tempfile.TemporaryDirectory() as empty:
            ended = ranks.run(["tclsh"], input=program, env=ranks.environment(MEGADP_MODULE=folder, MEGADP_CHECKPOINTS=empty))
        self.assertEqual(ended.stdout, '1 1 user "nobody-here" doesn\'t exist\n', ended.stderr)


class Csharp(Language, unittest.TestCase):
    name = "csharp"

    def command(self, folder):
        program = os.path.join(folder, "Smoke.exe")
        build.run("mcs", "-out:" + program, "-r:" + os.path.join(folder, "MegaDP.dll"), os.path.join(PROGRAMS, "Smoke.cs"))
        return ["mono", program]

    def environment(self, folder):
        return {"LD_LIBRARY_PATH": folder}

    def test_text(self):
        """A string with a NUL in it is an error, and is not cut there."""
        folder = self.built()
        program = os.path.join(folder, "Text.exe")
        with tempfile.TemporaryDirectory() as empty:
            source = os.path.join(empty, "Text.cs")
            with open(source, "w", encoding="utf-8") as file:
                file.write('''class Text {
  static void Main() {
    try {
      new MegaDP.CheckpointOptions().RankData = "a\\0b";
      System.Console.WriteLine("taken");
    } catch (System.ArgumentException error) {
      System.Console.WriteLine(error.ParamName);
    }
  }
}''')
            build.run("mcs", "-out:" + program, "-r:" + os.path.join(folder, "MegaDP.dll"), source)
        ended = ranks.run(["mono", program], env=ranks.environment(**self.environment(folder)))
        self.assertEqual(ended.stdout, "rank_data\n", ended.stderr)


class R(Language, unittest.TestCase):
    name = "r"
    alone = ("-e", """
folder <- Sys.getenv("MEGADP_MODULE")
dyn.load(file.path(folder, "megadp.so"))
source(file.path(folder, "megadp.R"))
cacheMetaData(1)
options <- CommOptions()
options$id <- Comm_unique_id()
options$rank <- 0L
options$size <- 2L
options$timeout_seconds <- 200
system(paste0("(sleep 0.4; kill -INT ", Sys.getpid(), ") &"))
tryCatch(Comm_create(options), interrupt = function(condition) cat("interrupted\n"))
""")

    def command(self, folder):
        return ["Rscript", "--vanilla", os.path.join(PROGRAMS, "smoke.R")]

    def test_memory(self):
        """Lists and objects that calls make are freed."""
        self.program("arguments.R", [1], "memory\n", "memory")

    def test_a_dropped_step(self):
        self.program("arguments.R", [2], "dropped\n", "dropped")

    def test_objects(self):
        """A wrong object, or one of another process, is an error."""
        self.program("arguments.R", [1], "objects\n", "objects")

    def test_copies(self):
        """What is set of one name is not of another, and an object can be printed."""
        self.program("arguments.R", [1], "copies\n", "copies")

    def test_lists(self):
        """What is no list of numbers is refused."""
        self.program("arguments.R", [1], "lists\n", "lists")

    def test_numbers(self):
        """64 bits; what is not whole is refused."""
        self.program("arguments.R", [1], "numbers\n", "numbers")

    def test_texts(self):
        """What is not one text is refused; "~" is expanded."""
        self.program("arguments.R", [1], "texts\n", "texts")


if __name__ == "__main__":
    unittest.main()
