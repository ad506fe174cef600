# SPDX-License-Identifier: Apache-2.0
# What test_scripting.py runs with 1 and 2 ranks: a line, fitted; the failures; views. Every rank prints the same.
use strict;
use warnings;
use megadp;

sub fails {
    my ($what, $call) = @_;
    eval { $call->(); 1 } and die "$what does not fail";
    my $failure = $@;
    die $failure unless ref $failure eq "megadp::Error";
    print "$what $failure->{name} $failure->{param} $failure->{rank}\n";
    return "$failure";
}

my $comm = megadp::Comm::create(megadp::CommOptions->new);
my ($rank, $ranks) = ($comm->rank, $comm->size);
my $params = megadp::Params->new;
for my $name ("w", "b") {
    my $param = megadp::Param->new($name);
    $param->add_dimension(1);
    $params->add($param);
}
my $buffer = megadp::Buffer::create($comm, $params, megadp::BufferOptions->new);
my $options = megadp::OptimizerOptions->new;
$options->{lr} = 0.1;
my $optimizer = megadp::Optimizer::create($buffer, $options);
for (1 .. 40) {
    my ($w, $b) = ($buffer->read(0)->[0], $buffer->read(1)->[0]);
    my ($grad_w, $grad_b) = (0, 0);
    for (my $i = $rank; $i < 64; $i += $ranks) {
        my $x = $i / 32 - 1;
        my $e = $w * $x + $b - (2 * $x - 1);
        $grad_w += $e * $x / 32 * $ranks;
        $grad_b += $e / 32 * $ranks;
    }
    $buffer->put(1, [$grad_b]);
    $buffer->put(0, [$grad_w]);
    $optimizer->step(megadp::StepOptions->new);
}
printf "fit %.2f %.2f\n", $buffer->read(0)->[0], $buffer->read(1)->[0];
printf "sum %d\n", $comm->all_reduce([$rank + 1], $megadp::Op_SUM)->[0] - $ranks * ($ranks + 1) / 2;

$buffer->put(1, [1]);
$buffer->put(0, [1]) if $rank < $ranks - 1;
die "unnamed" unless fails("missing", sub { $buffer->sync }) =~ /'w'/;
fails("bad", sub { $buffer->put(7, [1]) });
fails("shape", sub { $buffer->put(1, [1, 2]) });
$buffer->begin_microbatch(1);
$buffer->put(1, [1]);
$buffer->put(0, [1]);
$buffer->start_sync->wait;
my @norms = ($buffer->grad_norm, $buffer->grad_norm_of([0]));
$buffer->scale_grads_of(0.5, [1]);
push @norms, $buffer->grad_norm_of([1]), $buffer->grad_norm_of([]);
$buffer->scale_grads(2);
push @norms, $buffer->grad_norm;
$buffer->grad(0)->set(0, 0);
$buffer->grads_changed;
push @norms, $buffer->grad_norm_of([0, 1]);
printf "norm %.2f %.2f %.2f %.2f %.2f %.2f\n", @norms;
fails("listed", sub { $buffer->grad_norm_of([7]) });
printf "steps %d %d\n", $optimizer->step(megadp::StepOptions->new)->{step}, $optimizer->steps(1);
$buffer->wait_all;

my $reversed = $comm->split(0, -$rank);
printf "names %d %d %d %d\n", $buffer->find("b"), $buffer->find("w"), $buffer->buckets, $reversed->world_rank(0) - ($ranks - 1);
fails("unknown", sub { $buffer->find("v") });
$buffer->write(0, [7 + $rank]);
$buffer->broadcast(0);
$buffer->start_broadcast($ranks - 1)->wait;
$comm->start_barrier->wait;
$options->{lr} = 0;
my $still = megadp::Optimizer::create($buffer, $options);
$buffer->put(1, [1]);
$buffer->put(0, [1]);
$still->step(megadp::StepOptions->new);
printf "value %d\n", $buffer->read(0)->[0];
$comm->barrier;    # a rank whose program ends must have been needed for the last time
my $view = $buffer->param(1);
$buffer->close;
$comm->close;
die "open" unless fails("closed", sub { $buffer->read(0) }) =~ /is closed/;
undef $buffer;
undef $still;
$view->set(0, 5.5);
printf "view %s\n", $view->get(0);
