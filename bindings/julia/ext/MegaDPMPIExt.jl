# SPDX-License-Identifier: Apache-2.0
# Programs that have MPI already: it carries the id by which ranks find each other.
module MegaDPMPIExt

using MegaDP: MegaDP
using MPI: MPI

"""
    Comm(mpi_comm::MPI.Comm; ...)

The ranks of an MPI communicator as one of the library's, whatever launcher there is. Keywords are those of `Comm`, but for `id`, `rank` and
`size`. With ranks on several nodes, rank 0 has its address in the environment variable MEGADP_ROOT (host:port). Collective over
`mpi_comm`; blocking.
"""
function MegaDP.Comm(mpi::MPI.Comm; keywords...)
    rank = MPI.Comm_rank(mpi)
    id = rank == 0 ? MegaDP.unique_id() : zeros(UInt8, sizeof(MegaDP.Raw.mdp_unique_id))
    MPI.Bcast!(id, mpi; root = 0)
    return MegaDP.Comm(; id = id, rank = rank, size = MPI.Comm_size(mpi), keywords...)
end

end
