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
$optimizer->set_steps(100);
my ($before, $counts) = ($optimizer->steps(1), megadp::Counts->new);
$counts->add($_) for 9, 7;
$optimizer->set_steps_of(9, $counts);
printf "set %d %d %s\n", $before, $optimizer->steps(1), substr($optimizer->info, 9, 5);
$buffer->wait_all;
my ($saved, $directory, $about) = ($buffer->read(0)->[0], $ENV{MEGADP_CHECKPOINTS}, megadp::CheckpointOptions->new);
($about->{shared_data}, $about->{rank_data}, $about->{keep}) = ("all", "r$rank", 1);
megadp::Checkpoint::save($directory, $buffer, $optimizer, $about);
$buffer->write(0, [99]);
$optimizer->set_steps(1);
megadp::Checkpoint::load($directory, $buffer, $optimizer, megadp::CheckpointOptions->new);
printf "restored %d %d %s %s\n", $buffer->read(0)->[0] == $saved, $optimizer->steps(1), megadp::Checkpoint::data($directory, -1),
  megadp::Checkpoint::data($directory, 0);
die "unnamed" if index(megadp::Checkpoint::info($directory), "checkpoint-000001") < 0;
fails("absent", sub { megadp::Checkpoint::info("$directory/absent") });

# Two buffers, one of them without an optimizer, and an array of this program's own in one checkpoint.
my ($parts, $late, $mean) = (megadp::CheckpointParts->new, megadp::Params->new, megadp::Param->new("mean"));
$mean->add_dimension(2);
$late->add(megadp::Param->new("late"));
my ($second, $memory) = (megadp::Buffer::create($comm, $late, megadp::BufferOptions->new), $parts->add_tensor($mean));
$parts->add($buffer, $optimizer);
$parts->add_buffer($second);
$memory->set_values([3, 4]);
$second->write(0, [6]);
$parts->save("$directory/parts", $about);
$parts->start_save("$directory/parts", $about)->wait;
$memory->set_values([0, 0]);
$second->write(0, [0]);
$buffer->write(0, [99]);
$parts->load("$directory/parts", megadp::CheckpointOptions->new);
printf "parts %d %d %d\n", $buffer->read(0)->[0] == $saved, $memory->get(1), $second->read(0)->[0];
$mean->add_dimension(-1);
fails("sized", sub { $parts->add_tensor($mean) });

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

# Sent as bf16 and checked; and in which order gradients came.
my $sent = megadp::BufferOptions->new;
@$sent{"wire_dtype", "error_feedback", "check_finite", "check_large"} = ($megadp::DType_BF16, 1, 1, 1);
my $pair = megadp::Params->new;
for my $name ("v", "u") {
    my $param = megadp::Param->new($name);
    $param->add_dimension(1);
    $param->{use_order} = $name eq "v" ? 1 : 0;
    $pair->add($param);
}
my $checked = megadp::Buffer::create($comm, $pair, $sent);
$checked->put(0, [1]);
$checked->put(1, [$rank == $ranks - 1 ? 9**9**9 : 1]);
die "unnamed" unless fails("numeric", sub { $checked->sync }) =~ /'u'/;
my $scaled = megadp::StepOptions->new;
$scaled->{loss_scale} = 2;
my $skips = megadp::Optimizer::create($checked, megadp::OptimizerOptions->new);
my $skipped = $skips->step($scaled)->{skipped};
$checked->put(0, [1]);
$checked->put(1, [1]);
$checked->sync;
printf "sent %d %d %d %d\n", $skipped, @{$checked->use_order}, $checked->stats->{large_gradients};

# The same step with ZERO_1 and with ZERO_2, whose gradients are put and written where they go; and with several optimizer instances.
my @found;
for my $way ([$megadp::Sharding_ZERO_1, 1], [$megadp::Sharding_ZERO_2, 1], [$megadp::Sharding_ZERO_1, $ranks]) {
    my ($sharding, $instances) = @$way;
    my $layers = megadp::Params->new;
    for my $name ("lower", "upper") {
        my $param = megadp::Param->new($name);
        $param->add_dimension(3);
        $layers->add($param);
    }
    my $sharded = megadp::BufferOptions->new;
    $sharded->{sharding} = $sharding;
    $sharded->{bucket_elements} = 1;
    $sharded->{pool_buckets} = 2 if $sharding == $megadp::Sharding_ZERO_2;
    my $cut = megadp::GridOptions->new;
    $cut->{instances} = $instances;
    my $pooled = megadp::Buffer::create_on(megadp::Grid::create($comm, $cut), $layers, $sharded);
    my $adam = megadp::Optimizer::create($pooled, megadp::OptimizerOptions->new);
    my $lent = $pooled->acquire(1);
    die "first" unless $lent->first && $lent->size == 3;
    $lent->set_values([9, 9, 9]);
    if ($sharding == $megadp::Sharding_ZERO_2) {
        fails("view", sub { $pooled->grad(0) });
        fails("lent", sub { $pooled->put(1, [1, 2, 3]) });
    }
    $pooled->release(1);
    fails("released", sub { $lent->get(0) }) if $sharding == $megadp::Sharding_ZERO_2;
    $lent = $pooled->acquire(1);
    $lent->set_values([1 / 3 + $rank, 2 / 3, 3 / 7]);
    $pooled->ready(1);
    $pooled->put(0, [1 / 7, $rank / 3, -1 / 9]);
    $pooled->sync;
    my @owned = map { $pooled->owned_grad($_) } 0, 1;
    my $size = $comm->all_reduce([$owned[0]->size + $owned[1]->size], $megadp::Op_SUM)->[0] / $instances;
    $_->set_values([map { 2 * $_ } @{$_->values}]) for @owned;
    $pooled->grads_changed;
    my $norm = $pooled->grad_norm;
    $adam->step(megadp::StepOptions->new);
    push @found, join " ", $norm, $size, @{$pooled->read(0)}, @{$pooled->read(1)};
    printf "pooled %d %d\n", $size, $pooled->stats->{spill_peak_bytes} if $sharding == $megadp::Sharding_ZERO_2;
    $adam->close;
    $pooled->close;
}
printf "zero2 %s\n", $found[0] eq $found[1] ? "same" : "@found";
printf "instances %s\n", $found[0] eq $found[2] ? "same" : "@found";
$comm->barrier;    # a rank whose program ends must have been needed for the last time
my $view = $buffer->param(1);
$buffer->close;
$comm->close;
die "open" unless fails("closed", sub { $buffer->read(0) }) =~ /is closed/;
undef $buffer;
undef $still;
$view->set(0, 5.5);
printf "view %s\n", $view->get(0);
