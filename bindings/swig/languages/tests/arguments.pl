# SPDX-License-Identifier: Apache-2.0
# What test_scripting.py runs: what is no list of numbers is refused by a sentence that names it, and nothing is left behind.
use strict;
use warnings;
use Config;
use Storable;
use megadp;

sub refused {
    my ($named, $call) = @_;
    eval { $call->(); 1 } and die "not refused: $named";
    die "$@ does not say $named" if index("$@", $named) < 0;
}

sub resident {
    open my $file, "<", "/proc/self/status" or die $!;
    return (join "", <$file>) =~ /VmRSS:\s*(\d+)/ ? $1 : die "no VmRSS";
}

my $comm = megadp::Comm::create(megadp::CommOptions->new);
my $params = megadp::Params->new;
my $param = megadp::Param->new("v");
$param->add_dimension(3);
$params->add($param);
my $buffer = megadp::Buffer::create($comm, $params, megadp::BufferOptions->new);

my @sparse = (1);
$sparse[2] = 3;
refused("values of Buffer_write must be a reference to an array of numbers", sub { $buffer->write(0, $_) }) for undef, 5, "1 2 3", {}, $comm;
refused("values of Buffer_write: element 1 is no number", sub { $buffer->write(0, $_) }) for [1, undef, 3], [1, "x", 3], [1, [2], 3], \@sparse;
refused("counts of Comm_all_gather_v must be", sub { $comm->all_gather_v([1], undef) });
$buffer->write(0, [split /,/, "4,5,6.5"]);
die "read other numbers" unless "@{$buffer->read(0)}" eq "4 5 6.5";

# Storable and threads, which copy what Perl sees, do not get at objects; `copy` is another one.
my $options = megadp::OptimizerOptions->new;
$options->{lr} = 0.5;
for my $object ($options, $param, $buffer, $comm) {
    my $class = ref $object;
    refused("a $class is memory of this process", sub { Storable::dclone({ object => $object }) });
    refused("a $class is memory of this process", sub { Storable::freeze([$object]) });
    die "a thread would have a $class" unless $class->CLONE_SKIP;
}
my $twin = $options->copy;
$twin->{lr} = 9;
die "copied by name" unless $options->{lr} == 0.5 && $twin->{lr} == 9;
if ($Config::Config{useithreads}) {
    require threads;
    my $seen = threads->create(sub { eval { $options->{lr} = 9; 1 } ? "an object" : "none" })->join;
    die "a thread has $seen, and lr is $options->{lr}" unless $seen eq "none" && $options->{lr} == 0.5;
}

my @long = map { $_ + 0.5 } 1 .. 100000;
my @bad = (@long, "x");
my $before;
for my $round (0 .. 100) {
    $before = resident() if $round == 2;
    refused("counts[0]", sub { $comm->all_gather_v(\@long, [1]) });
    refused("is no number", sub { $comm->all_gather_v(\@bad, [1]) });
}
die "100 refused calls keep ", resident() - $before, " kB" if resident() - $before > 20000; # of 160000
print "refused\n";
