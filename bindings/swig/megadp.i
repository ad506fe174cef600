// SPDX-License-Identifier: Apache-2.0
/* megadp for every language that SWIG knows: the classes of shim/, which are written over megadp.h, so that no language sees sizes of structs,
   out-parameters or pointers. What a language does differently (exceptions, arrays, names) is in its own file below; what it does not say
   is SWIG's default. tests/build.py shows how a module is made. */
%module megadp

%begin %{
// Before the hosts' headers, some of which define words of the standard library as macros.
#include "shim/checkpoint.h"
#include "shim/halo.h"
#include "shim/plan.h"
#include "shim/tp.h"
%}

%include "stdint.i"

/* The hidden last argument of whatever can fail. A language's `argout` throws. Go has no exceptions: there it stays an argument. */
#ifndef SWIGGO
%typemap(in, numinputs=0) megadp::Failure& failure (megadp::Failure outcome) "$1 = &outcome;"
#endif
%immutable megadp::Failure::code;
%immutable megadp::Failure::rank;
%immutable megadp::Failure::bucket;
%immutable megadp::Failure::param;
%immutable megadp::Failure::operation;
%immutable megadp::Failure::text;
%immutable megadp::ConvPart::low;
%immutable megadp::ConvPart::high;
%immutable megadp::ConvPart::output_begin;
%immutable megadp::ConvPart::output_size;
%immutable megadp::ConvPart::first;
%immutable megadp::ConvPart::inside_begin;
%immutable megadp::ConvPart::inside_size;
%immutable megadp::ConvPart::whole_output;

%newobject megadp::Comm::create;
%newobject megadp::Comm::split;
%newobject megadp::Comm::start_barrier;
%newobject megadp::Comm::lost;
%newobject megadp::Grid::create;
%newobject megadp::Grid::comm;
%newobject megadp::Buffer::create;
%newobject megadp::Buffer::create_on;
%newobject megadp::Buffer::param;
%newobject megadp::Buffer::grad;
%newobject megadp::Buffer::acquire;
%newobject megadp::Buffer::owned_grad;
%newobject megadp::Buffer::start_sync;
%newobject megadp::Buffer::start_broadcast;
%newobject megadp::Optimizer::create;
%newobject megadp::Optimizer::start_step;
%newobject megadp::Optimizer::scale;
%newobject megadp::Optimizer::begin_step;
%newobject megadp::Optimizers::begin_step_many;
%newobject megadp::Step::next;
%newobject megadp::UpdatePiece::master;
%newobject megadp::UpdatePiece::grad;
%newobject megadp::UpdatePiece::state;
%newobject megadp::UpdatePiece::param_state;
%newobject megadp::Optimizers::start_step_many;
%newobject megadp::Checkpoint::start_save;
%newobject megadp::Checkpoint::start_save_many;
%newobject megadp::CheckpointParts::start_save;
%newobject megadp::CheckpointParts::add_tensor;
%newobject megadp::Optimizer::state;
%newobject megadp::TpLinear::create;
%newobject megadp::TpLinear::create_in;
%newobject megadp::TpLinear::forward_saving;
%newobject megadp::TpLinear::backward;
%newobject megadp::TensorParallel::cross_entropy_forward;
%newobject megadp::Halo::create;
%newobject megadp::Halo::array;

/* A value that is given is meant literally, also 0: to set a member sets the one that says so, which no language sees. */
%typemap(memberin) megadp::Given, megadp::GivenDevice, megadp::GivenClass, megadp::GivenGroup "if (arg1) { $1 = $input; arg1->set_$1_name = true; }"
%ignore megadp::CommOptions::set_device;
%ignore megadp::ParamGroup::set_lr;
%ignore megadp::ParamGroup::set_weight_decay;
%ignore megadp::ParamGroup::set_beta1;
%ignore megadp::ParamGroup::set_beta2;
%ignore megadp::ParamGroup::set_momentum;
%ignore megadp::OptimizerOptions::set_lr;
%ignore megadp::OptimizerOptions::set_beta1;
%ignore megadp::OptimizerOptions::set_beta2;
%ignore megadp::OptimizerOptions::set_momentum;
%ignore megadp::OptimizerOptions::set_first_param_group;
%ignore megadp::StepOptions::set_lr;
%ignore megadp::TpCrossEntropyOptions::set_ignore_index;

/* Made by the methods above only. */
%nodefaultctor megadp::Comm;
%nodefaultctor megadp::Grid;
%nodefaultctor megadp::Buffer;
%nodefaultctor megadp::Optimizer;
%nodefaultctor megadp::UpdatePiece;
%nodefaultctor megadp::Step;
%nodefaultctor megadp::Request;
%nodefaultctor megadp::View;
%nodefaultctor megadp::Library;
%nodefaultdtor megadp::Library;
%nodefaultctor megadp::Plan;
%nodefaultdtor megadp::Plan;
%nodefaultctor megadp::Checkpoint;
%nodefaultdtor megadp::Checkpoint;
%nodefaultctor megadp::TpLinear;
%nodefaultctor megadp::TpSaved;
%nodefaultctor megadp::TpGradients;
%nodefaultctor megadp::TpLosses;
%nodefaultctor megadp::Halo;
%nodefaultctor megadp::TensorParallel;
%nodefaultdtor megadp::TensorParallel;

#if defined(SWIGJAVA)
%include "java/java.i"
#elif defined(SWIGGO)
%include "go/go.i"
#else
%include "std_string.i"
%include "std_vector.i"
#ifdef SWIGCSHARP
%template(Doubles) std::vector<double>;
#else
%template() std::vector<double>;  // lists of the language's own; a class would have the methods of C++, whose exceptions end the host
#endif
%include "languages/scripting.i"
#endif

%include "shim/failure.h"
%include "shim/enumerations.h"
%include "shim/arrays.h"
%include "shim/request.h"
%include "shim/comm.h"
%include "shim/grid.h"
%include "shim/params.h"
%immutable;  // what these have is told: reports, ranges and pieces, whose `count` bounds their memory
%include "shim/buffer.h"
%include "shim/steps.h"
%mutable;
%include "shim/optimizer_options.h"
%include "shim/optimizer.h"
%include "shim/plan.h"
%include "shim/optimizers.h"
%include "shim/checkpoint_parts.h"
%include "shim/checkpoint.h"
%include "shim/tp.h"
%include "shim/halo.h"

#ifdef SWIGRUBY
%init %{
  megadp_define_copies();  // of all classes: they are there now
%}
#endif
