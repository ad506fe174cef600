# SPDX-License-Identifier: Apache-2.0
# What test_scripting.py runs with 1 and 2 ranks: a line, fitted; the failures; views. Every rank prints the same.
load [file join $env(MEGADP_MODULE) megadp.so] Megadp

proc fails {what script} {
    if {![catch {uplevel 1 $script} text problem]} { error "$what does not fail" }
    lassign [dict get $problem -errorcode] library name code rank bucket param operation
    if {$library ne "MEGADP"} { error $text }
    puts "$what $name $param $rank"
    return $text
}

set comm [megadp::Comm_create [megadp::CommOptions options]]
set rank [megadp::Comm_rank $comm]
set ranks [megadp::Comm_size $comm]
megadp::Params params
foreach name {w b} {
    megadp::Param $name $name
    $name add_dimension 1
    params add $name
}
set buffer [megadp::Buffer_create $comm params [megadp::BufferOptions bufferOptions]]
megadp::OptimizerOptions optimizerOptions
optimizerOptions configure -lr 0.1
megadp::StepOptions stepOptions
set optimizer [megadp::Optimizer_create $buffer optimizerOptions]
for {set step 0} {$step < 40} {incr step} {
    set w [lindex [megadp::Buffer_read $buffer 0] 0]
    set b [lindex [megadp::Buffer_read $buffer 1] 0]
    set gradW 0
    set gradB 0
    for {set i $rank} {$i < 64} {incr i $ranks} {
        set x [expr {$i / 32.0 - 1}]
        set e [expr {$w * $x + $b - (2 * $x - 1)}]
        set gradW [expr {$gradW + $e * $x / 32 * $ranks}]
        set gradB [expr {$gradB + $e / 32 * $ranks}]
    }
    megadp::Buffer_put $buffer 1 [list $gradB]
    megadp::Buffer_put $buffer 0 [list $gradW]
    megadp::Optimizer_step $optimizer stepOptions
}
puts [format "fit %.2f %.2f" [lindex [megadp::Buffer_read $buffer 0] 0] [lindex [megadp::Buffer_read $buffer 1] 0]]
set sum [lindex [megadp::Comm_all_reduce $comm [list [expr {$rank + 1}]] $megadp::Op_SUM] 0]
puts "sum [expr {int($sum) - $ranks * ($ranks + 1) / 2}]"

megadp::Buffer_put $buffer 1 {1}
if {$rank < $ranks - 1} { megadp::Buffer_put $buffer 0 {1} }
if {![string match *'w'* [fails missing {megadp::Buffer_sync $buffer}]]} { error unnamed }
fails bad {megadp::Buffer_put $buffer 7 {1}}
fails shape {megadp::Buffer_put $buffer 1 {1 2}}
megadp::Buffer_begin_microbatch $buffer 1
megadp::Buffer_put $buffer 1 {1}
megadp::Buffer_put $buffer 0 {1}
set request [megadp::Buffer_start_sync $buffer]
megadp::Request_wait $request
set norms [list [megadp::Buffer_grad_norm $buffer] [megadp::Buffer_grad_norm_of $buffer {0}]]
megadp::Buffer_scale_grads_of $buffer 0.5 {1}
lappend norms [megadp::Buffer_grad_norm_of $buffer {1}] [megadp::Buffer_grad_norm_of $buffer {}]
megadp::Buffer_scale_grads $buffer 2
lappend norms [megadp::Buffer_grad_norm $buffer]
megadp::View_set [megadp::Buffer_grad $buffer 0] 0 0
megadp::Buffer_grads_changed $buffer
lappend norms [megadp::Buffer_grad_norm_of $buffer {0 1}]
puts [format "norm %.2f %.2f %.2f %.2f %.2f %.2f" {*}$norms]
fails listed {megadp::Buffer_grad_norm_of $buffer {7}}
puts "steps [megadp::StepReport_step_get [megadp::Optimizer_step $optimizer stepOptions]] [megadp::Optimizer_steps $optimizer 1]"
megadp::Optimizer_set_steps $optimizer 100
set before [megadp::Optimizer_steps $optimizer 1]
megadp::Counts counts
counts add 9
counts add 7
megadp::Optimizer_set_steps_of $optimizer 9 counts
puts "set $before [megadp::Optimizer_steps $optimizer 1] [string range [megadp::Optimizer_info $optimizer] 9 13]"
megadp::Buffer_wait_all $buffer
set saved [lindex [megadp::Buffer_read $buffer 0] 0]
set directory $env(MEGADP_CHECKPOINTS)
megadp::CheckpointOptions about
about configure -shared_data all -rank_data r$rank -keep 1
megadp::Checkpoint_save $directory $buffer $optimizer about
megadp::Buffer_write $buffer 0 {99}
megadp::Optimizer_set_steps $optimizer 1
megadp::CheckpointOptions checkpointOptions
megadp::Checkpoint_load $directory $buffer $optimizer checkpointOptions
set same [expr {[lindex [megadp::Buffer_read $buffer 0] 0] == $saved}]
puts "restored $same [megadp::Optimizer_steps $optimizer 1] [megadp::Checkpoint_data $directory -1] [megadp::Checkpoint_data $directory 0]"
if {[string first checkpoint-000001 [megadp::Checkpoint_info $directory]] < 0} {error unnamed}
fails absent {megadp::Checkpoint_info $directory/absent}

# Two buffers, one of them without an optimizer, and an array of this program's own in one checkpoint.
megadp::CheckpointParts parts
megadp::Param mean mean
mean add_dimension 2
megadp::Params lateParams
megadp::Param late late
lateParams add late
set second [megadp::Buffer_create $comm lateParams bufferOptions]
set memory [parts add_tensor mean]
parts add $buffer $optimizer
parts add_buffer $second
megadp::View_set_values $memory {3 4}
megadp::Buffer_write $second 0 {6}
parts save $directory/parts about
megadp::Request_wait [parts start_save $directory/parts about]
megadp::View_set_values $memory {0 0}
megadp::Buffer_write $second 0 {0}
megadp::Buffer_write $buffer 0 {99}
parts load $directory/parts checkpointOptions
set same [expr {[lindex [megadp::Buffer_read $buffer 0] 0] == $saved}]
puts "parts $same [expr {int([megadp::View_get $memory 1])}] [expr {int([lindex [megadp::Buffer_read $second 0] 0])}]"
mean add_dimension -1
fails sized {parts add_tensor mean}

set reversed [megadp::Comm_split $comm 0 -$rank]
set last [expr {[megadp::Comm_world_rank $reversed 0] - ($ranks - 1)}]
puts "names [megadp::Buffer_find $buffer b] [megadp::Buffer_find $buffer w] [megadp::Buffer_buckets $buffer] $last"
fails unknown {megadp::Buffer_find $buffer v}
megadp::Buffer_write $buffer 0 [list [expr {7 + $rank}]]
megadp::Buffer_broadcast $buffer 0
megadp::Request_wait [megadp::Buffer_start_broadcast $buffer [expr {$ranks - 1}]]
megadp::Request_wait [megadp::Comm_start_barrier $comm]
optimizerOptions configure -lr 0
set still [megadp::Optimizer_create $buffer optimizerOptions]
megadp::Buffer_put $buffer 1 {1}
megadp::Buffer_put $buffer 0 {1}
megadp::Optimizer_step $still stepOptions
puts [format "value %d" [expr {int([lindex [megadp::Buffer_read $buffer 0] 0])}]]

# Sent as bf16 and checked; and in which order gradients came.
megadp::BufferOptions sent
sent configure -wire_dtype $megadp::DType_BF16 -error_feedback 1 -check_finite 1 -check_large 1
megadp::Params pair
foreach {name order} {v 1 u 0} {
    megadp::Param $name $name
    $name add_dimension 1
    $name configure -use_order $order
    pair add $name
}
set checked [megadp::Buffer_create $comm pair sent]
megadp::Buffer_put $checked 0 {1}
megadp::Buffer_put $checked 1 [expr {$rank == $ranks - 1 ? "Inf" : 1}]
if {![string match *'u'* [fails numeric {megadp::Buffer_sync $checked}]]} { error unnamed }
megadp::StepOptions scaled
scaled configure -loss_scale 2
set report [megadp::Optimizer_step [megadp::Optimizer_create $checked [megadp::OptimizerOptions plain]] scaled]
set skipped [megadp::StepReport_skipped_get $report]
megadp::Buffer_put $checked 0 {1}
megadp::Buffer_put $checked 1 {1}
megadp::Buffer_sync $checked
set large [megadp::Stats_large_gradients_get [megadp::Buffer_stats $checked]]
puts [format "sent %d %.0f %.0f %d" $skipped {*}[megadp::Buffer_use_order $checked] $large]

# The same step with ZERO_1 and with ZERO_2, whose gradients are put and written where they go; and with several optimizer instances.
proc sharded_step {comm rank id sharding instances} {
    set zero2 [expr {$sharding == $megadp::Sharding_ZERO_2}]
    megadp::Params layers$id
    foreach name {lower upper} {
        megadp::Param $name$id $name
        $name$id add_dimension 3
        layers$id add $name$id
    }
    megadp::BufferOptions sharded$id
    sharded$id configure -sharding $sharding -bucket_elements 1 -pool_buckets [expr {2 * $zero2}]
    megadp::OptimizerOptions adam$id
    megadp::GridOptions cut$id
    cut$id configure -instances $instances
    set pooled [megadp::Buffer_create_on [megadp::Grid_create $comm cut$id] layers$id sharded$id]
    set optimizer [megadp::Optimizer_create $pooled adam$id]
    set lent [megadp::Buffer_acquire $pooled 1]
    if {![megadp::View_first $lent] || [megadp::View_size $lent] != 3} { error first }
    megadp::View_set_values $lent {9 9 9}
    if {$zero2} {
        fails view [list megadp::Buffer_grad $pooled 0]
        fails lent [list megadp::Buffer_put $pooled 1 {1 2 3}]
    }
    megadp::Buffer_release $pooled 1
    if {$zero2} { fails released [list megadp::View_get $lent 0] }
    set lent [megadp::Buffer_acquire $pooled 1]
    megadp::View_set_values $lent [list [expr {1 / 3.0 + $rank}] [expr {2 / 3.0}] [expr {3 / 7.0}]]
    megadp::Buffer_ready $pooled 1
    megadp::Buffer_put $pooled 0 [list [expr {1 / 7.0}] [expr {$rank / 3.0}] [expr {-1 / 9.0}]]
    megadp::Buffer_sync $pooled
    set size 0
    foreach param {0 1} {
        set owned [megadp::Buffer_owned_grad $pooled $param]
        set twice {}
        foreach value [megadp::View_values $owned] { lappend twice [expr {2 * $value}] }
        megadp::View_set_values $owned $twice
        incr size [megadp::View_size $owned]
    }
    set size [expr {int([lindex [megadp::Comm_all_reduce $comm [list $size] $megadp::Op_SUM] 0]) / $instances}]
    megadp::Buffer_grads_changed $pooled
    set norm [megadp::Buffer_grad_norm $pooled]
    megadp::Optimizer_step $optimizer stepOptions
    if {$zero2} { puts "pooled $size [megadp::Stats_spill_peak_bytes_get [megadp::Buffer_stats $pooled]]" }
    return [list $norm $size [megadp::Buffer_read $pooled 0] [megadp::Buffer_read $pooled 1]]
}
set one [sharded_step $comm $rank 1 $megadp::Sharding_ZERO_1 1]
set two [sharded_step $comm $rank 2 $megadp::Sharding_ZERO_2 1]
puts "zero2 [expr {$one eq $two ? "same" : "$one and $two"}]"
set cut [sharded_step $comm $rank 3 $megadp::Sharding_ZERO_1 $ranks]
puts "instances [expr {$one eq $cut ? "same" : "$one and $cut"}]"
megadp::Comm_barrier $comm  ;# a rank whose program ends must have been needed for the last time
set view [megadp::Buffer_param $buffer 1]
megadp::Buffer_close $buffer
megadp::Comm_close $comm
if {![string match "*is closed*" [fails closed {megadp::Buffer_read $buffer 0}]]} { error open }
megadp::View_set $view 0 5.5
puts "view [megadp::View_get $view 0]"
