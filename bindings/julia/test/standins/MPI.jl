# SPDX-License-Identifier: Apache-2.0
# A stand-in for MPI.jl, for the tests alone: the ranks of `megadp run`, and a broadcast through a file that they share; not the package.
module MPI

const STANDIN = true

struct Comm
    rank::Int
    size::Int
    file::String
end

Comm_rank(comm::Comm) = comm.rank
Comm_size(comm::Comm) = comm.size

function Bcast!(bytes, comm::Comm; root::Integer = 0)
    if comm.rank == root
        write(comm.file * ".part", bytes)
        mv(comm.file * ".part", comm.file)
    end
    while !isfile(comm.file)
        sleep(0.01)
    end
    return read!(comm.file, bytes)
end

end
