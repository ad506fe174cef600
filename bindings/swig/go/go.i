// SPDX-License-Identifier: Apache-2.0
/* Go: the Failure stays an argument, from which the package above makes errors; memory goes in as *byte, which a call may use and not keep. */
%include "std_string.i"
